# SPDX-License-Identifier: Apache-2.0
"""Cache layouts of small models, and what manages blocks for them."""

from dataclasses import dataclass
from typing import Any

import torch
from pool.traffic import HASH_BLOCK

from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    MambaSpec,
    SlidingWindowSpec,
)

MAX_MODEL_LEN = 256


@dataclass(frozen=True, repr=False)
class Layout:
    """The KV-cache groups of a model; `mamba` has a group of states."""

    name: str
    specs: tuple[KVCacheSpec, ...]

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @property
    def block_sizes(self) -> dict[int, int]:
        return {i: spec.block_size for i, spec in enumerate(self.specs)}

    @property
    def mamba(self) -> bool:
        return any(isinstance(spec, MambaSpec) for spec in self.specs)

    @property
    def scheduler_block_size(self) -> int:
        return max(spec.block_size for spec in self.specs)

    def config(self, num_blocks: int) -> KVCacheConfig:
        names = [f"l{i}" for i in range(len(self.specs))]
        page = 64
        return KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[
                KVCacheTensor(
                    size=page * num_blocks,
                    layers=[name],
                    layer_stride=page * num_blocks,
                    block_stride=page,
                )
                for name in names
            ],
            kv_cache_groups=[
                KVCacheGroupSpec([name], spec)
                for name, spec in zip(names, self.specs, strict=True)
            ],
        )

    def manager(
        self, num_blocks: int, *, events: bool = True, **options: Any
    ) -> KVCacheManager:
        return KVCacheManager(
            self.config(num_blocks),
            max_model_len=MAX_MODEL_LEN,
            scheduler_block_size=self.scheduler_block_size,
            hash_block_size=HASH_BLOCK,
            enable_kv_cache_events=events,
            **options,
        )


def full(block_size: int = HASH_BLOCK) -> FullAttentionSpec:
    return FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )


def sliding(window: int, block_size: int = HASH_BLOCK) -> SlidingWindowSpec:
    return SlidingWindowSpec(
        block_size=block_size,
        num_kv_heads=1,
        head_size=1,
        dtype=torch.float32,
        sliding_window=window,
    )


def mamba(block_size: int) -> MambaSpec:
    return MambaSpec(
        block_size=block_size,
        shapes=((1,),),
        dtypes=(torch.float32,),
        mamba_cache_mode="align",
    )


PLAIN = Layout("plain", (full(),))
HYBRID = Layout("hybrid", (full(), sliding(8), sliding(12)))
MIXED_SIZES = Layout("mixed sizes", (full(8), sliding(8)))
MAMBA = Layout("mamba", (full(8), mamba(8)))
LAYOUTS = (PLAIN, HYBRID, MIXED_SIZES, MAMBA)
