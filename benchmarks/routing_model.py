# SPDX-License-Identifier: Apache-2.0
"""A model for routing: small, but large enough that computing a prompt takes time."""

import hashlib
import json
import shutil
from pathlib import Path

from cpu_engine import tiny_model
from cpu_engine.tiny_model import TinyModel
from trees import kept

MAX_MODEL_LEN = 6720


def ensure_model(cache: Path) -> Path:
    """The folder of the model under `cache`, which is made if it is missing.

    Tokenizer and chat template are the tiny model's; weights are random.
    """
    base = tiny_model.ensure_model(TinyModel.QWEN2, cache)
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    folder = cache / f"routing-{recipe}-{base.name}"
    return kept(folder, lambda draft: _write(base, draft))


def _write(base: Path, folder: Path) -> None:
    import torch
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.manual_seed(0)
    config = json.loads((base / "config.json").read_text())
    model = Qwen2ForCausalLM(
        Qwen2Config(
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=3,
            num_attention_heads=6,
            num_key_value_heads=2,
            max_position_embeddings=MAX_MODEL_LEN,
            vocab_size=config["vocab_size"],
            tie_word_embeddings=True,
            pad_token_id=config["pad_token_id"],
            bos_token_id=None,
            eos_token_id=config["eos_token_id"],
            dtype="float32",
        )
    )
    model.generation_config = GenerationConfig(
        pad_token_id=config["pad_token_id"], eos_token_id=config["eos_token_id"]
    )
    model.save_pretrained(folder)
    shutil.copy(base / "tokenizer.json", folder)
    tokenizer = json.loads((base / "tokenizer_config.json").read_text())
    tokenizer["model_max_length"] = MAX_MODEL_LEN
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer, indent=2))
