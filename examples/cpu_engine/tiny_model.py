# SPDX-License-Identifier: Apache-2.0
"""Tiny models with random weights, made on the spot.

Their answers mean nothing. What is real about them is everything a KV-cache event
depends on: the tokenizer, the chat template, the layers and the cache groups. Nothing
is downloaded, and the same recipe always gives the same bytes.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

VOCABULARY_SIZE = 512
MAX_MODEL_LEN = 4096
SLIDING_WINDOW = 128

END_OF_TURN = "<|end|>"
SPECIAL_TOKENS = ["<|pad|>", END_OF_TURN, "<|system|>", "<|user|>", "<|assistant|>"]

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|{{ message['role'] }}|>{{ message['content'] }}" + END_OF_TURN + "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

# Enough English for a byte-pair tokenizer to find the common words.
CORPUS = """
A session is a conversation between a person and a model, and it can fork: two
continuations of one prefix share every block of the cache that holds the prefix.
An engine keeps the keys and values of the tokens that it has seen, block by block,
and evicts the blocks that were not used for the longest time when it needs room.
A router that knows which engine holds which prefix sends the next turn of a session
there, so that the tokens of the earlier turns are not computed again.
The user asks a question, the assistant answers it, and the user asks the next one.
Please explain in a few words what happens to the cache when a session is paused.
"""


class TinyModel(StrEnum):
    """The architectures that there is a recipe for."""

    QWEN2 = "qwen2"
    """Two layers of full attention: one cache group."""
    GEMMA3 = "gemma3"
    """Three sliding-window layers and a full one: four cache groups."""


def ensure_model(kind: TinyModel, cache: Path) -> Path:
    """Returns the folder of a model under `cache`, which is made if it is missing.

    The folder's name holds a digest of this file, so a changed recipe makes a new
    model, and a folder that was left half written is never taken for a whole one.
    """
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    folder = cache / f"{kind.value}-{recipe}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=cache))
    try:
        write_model(kind, draft)
        os.replace(draft, folder)
    except OSError:
        # Another process made the same folder first; its bytes are these.
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def write_model(kind: TinyModel, folder: Path) -> None:
    """Writes config, weights and tokenizer of a model into an existing folder."""
    # Only the first run needs these: importing them takes several seconds.
    import torch
    from transformers import GenerationConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.manual_seed(0)
    model = _random_qwen2() if kind is TinyModel.QWEN2 else _random_gemma3()
    model.generation_config = GenerationConfig(
        pad_token_id=model.config.pad_token_id, eos_token_id=model.config.eos_token_id
    )
    model.save_pretrained(folder)
    _write_tokenizer(folder)


def _random_qwen2() -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(
        Qwen2Config(num_hidden_layers=2, intermediate_size=128, **_common_config())
    )


def _random_gemma3() -> Any:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    sliding, full = "sliding_attention", "full_attention"
    return Gemma3ForCausalLM(
        Gemma3TextConfig(
            num_hidden_layers=4,
            intermediate_size=128,
            head_dim=32,
            query_pre_attn_scalar=32,
            sliding_window=SLIDING_WINDOW,
            layer_types=[sliding, sliding, sliding, full],
            **_common_config(),
        )
    )


def _common_config() -> dict[str, object]:
    return {
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": 64,
        # A head of 32 is the smallest that the CPU attention kernels know.
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": MAX_MODEL_LEN,
        "tie_word_embeddings": True,
        "pad_token_id": SPECIAL_TOKENS.index("<|pad|>"),
        "bos_token_id": None,
        "eos_token_id": SPECIAL_TOKENS.index(END_OF_TURN),
        "dtype": "float32",
    }


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sentences(), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "pad_token": "<|pad|>",
                "eos_token": END_OF_TURN,
                "model_max_length": MAX_MODEL_LEN,
                "chat_template": CHAT_TEMPLATE,
            },
            indent=2,
        )
        + "\n"
    )


def _sentences() -> Iterator[str]:
    yield from CORPUS.split("\n")
