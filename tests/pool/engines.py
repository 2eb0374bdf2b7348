# SPDX-License-Identifier: Apache-2.0
"""A real scheduler, and a model that says what the test wants it to say."""

import json
import tempfile
from collections import deque
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from pool.layouts import MAX_MODEL_LEN, Layout
from pool.traffic import HASH_BLOCK

from vllm.config import (
    CacheConfig,
    KVTransferConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.config.kv_events import KVEventsConfig
from vllm.distributed.kv_events import EventPublisher, KVEventBatch
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata
from vllm.v1.structured_output import StructuredOutputManager

CPU_BYTES = 64 * 40
"""Room for 40 blocks of one group in the second tier."""

NextToken = Callable[[Request], int]
"""What the model says next."""


class Kept(EventPublisher):
    """A publisher that keeps what it is given."""

    def __init__(self) -> None:
        self.batches: list[KVEventBatch] = []

    def publish(self, events: KVEventBatch) -> None:
        self.batches.append(events)

    def shutdown(self) -> None:
        pass

    def take(self) -> list[Any]:
        batches, self.batches = self.batches, []
        return [event for batch in batches for event in batch.events]


@cache
def model_config() -> ModelConfig:
    """The smallest model that a scheduler takes; nothing of it is ever run."""
    folder = Path(tempfile.mkdtemp(prefix="model-"))
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "vocab_size": 1000,
        "max_position_embeddings": MAX_MODEL_LEN,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return ModelConfig(
        model=str(folder),
        tokenizer=str(folder),
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=MAX_MODEL_LEN,
    )


@cache
def vllm_config(
    max_num_batched_tokens: int, max_num_seqs: int, offload: bool
) -> VllmConfig:
    transfer = KVTransferConfig(
        kv_connector="SimpleCPUOffloadConnector",
        kv_role="kv_both",
        kv_connector_extra_config={"cpu_bytes_to_use": CPU_BYTES},
    )
    return VllmConfig(
        model_config=model_config(),
        scheduler_config=SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=MAX_MODEL_LEN,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            watermark=0.0,
        ),
        cache_config=CacheConfig(block_size=HASH_BLOCK, enable_prefix_caching=True),
        kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"),
        kv_transfer_config=transfer if offload else None,
    )


class Engine:
    """A scheduler that is stepped by hand.

    Args:
        layout: The model's KV-cache groups.
        num_blocks: Blocks in the pool, the null block among them.
        max_num_batched_tokens: Tokens per step; prompts beyond it are chunked.
        max_num_seqs: Requests that run at once.
        overlap: Schedule a step before the last one's tokens are known.
        eagle: Let go of the last hash of each hit, as speculative decoding does.
        offload: Keep a second tier in the CPU's memory, which reports too.
    """

    def __init__(
        self,
        layout: Layout,
        num_blocks: int,
        *,
        max_num_batched_tokens: int = 64,
        max_num_seqs: int = 8,
        overlap: bool = False,
        eagle: bool = False,
        offload: bool = False,
    ) -> None:
        config = vllm_config(max_num_batched_tokens, max_num_seqs, offload)
        config.cache_config.num_gpu_blocks = num_blocks
        config.cache_config.mamba_cache_mode = "align" if layout.mamba else "none"
        register_all_kvcache_specs(config)
        self.scheduler = (AsyncScheduler if overlap else Scheduler)(
            vllm_config=config,
            kv_cache_config=layout.config(num_blocks),
            structured_output_manager=StructuredOutputManager(config),
            block_size=layout.scheduler_block_size,
            hash_block_size=HASH_BLOCK,
        )
        self.published = Kept()
        self.scheduler.kv_event_publisher = self.published
        if eagle:
            self.scheduler.kv_cache_manager = layout.manager(num_blocks, use_eagle=True)
        self.manager = self.scheduler.kv_cache_manager
        self.pool = self.manager.block_pool
        self._overlap = int(overlap)
        self._in_flight: deque[tuple[SchedulerOutput, set[str]]] = deque()

    @property
    def requests(self) -> dict[str, Request]:
        return self.scheduler.requests

    def add(self, request: Request) -> None:
        self.scheduler.add_request(request)

    def abort(self, request_id: str) -> None:
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def step(self, next_token: NextToken) -> SchedulerOutput:
        """Schedule a step; then one is computed and its tokens come in."""
        output = self.scheduler.schedule()
        self._in_flight.append((output, self._samplers(output)))
        if len(self._in_flight) > self._overlap:
            self._compute(next_token)
        return output

    def settle(self, next_token: NextToken) -> None:
        """Let what is in flight come in."""
        while self._in_flight:
            self._compute(next_token)

    def _samplers(self, output: SchedulerOutput) -> set[str]:
        names = output.num_scheduled_tokens
        return {name for name in names if not self.requests[name].is_prefill_chunk}

    def _compute(self, next_token: NextToken) -> None:
        output, samplers = self._in_flight.popleft()
        names = list(output.num_scheduled_tokens)
        sampled = [
            [next_token(self.requests[name])]
            if name in samplers and name in self.requests
            else []
            for name in names
        ]
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: i for i, name in enumerate(names)},
                sampled_token_ids=sampled,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
                kv_connector_output=_transferred(output.kv_connector_metadata),
            ),
        )


def _transferred(metadata: Any) -> KVConnectorOutput | None:
    """Every transfer that a step asks for is done when the step is."""
    if metadata is None:
        return None
    stored = {metadata.store_event: 1} if metadata.store_event >= 0 else {}
    loaded = metadata.load_event_to_reqs.get(metadata.load_event, [])
    return KVConnectorOutput(
        finished_recving=set(loaded) or None,
        kv_connector_worker_meta=SimpleCPUOffloadWorkerMetadata(
            completed_store_events=stored
        )
        if stored
        else None,
    )


def seen_by_workers(output: SchedulerOutput) -> tuple[object, ...]:
    """What a scheduler tells its workers: nothing that a label may change."""
    cached = output.scheduled_cached_reqs
    return (
        output.num_scheduled_tokens,
        [
            (new.req_id, new.block_ids, new.num_computed_tokens)
            for new in output.scheduled_new_reqs
        ],
        (cached.req_ids, cached.new_block_ids, cached.num_computed_tokens),
        output.preempted_req_ids,
        output.finished_req_ids,
    )
