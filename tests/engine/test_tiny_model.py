# SPDX-License-Identifier: Apache-2.0
"""The tiny models: one recipe, the same bytes, and never half a folder."""

from pathlib import Path

import pytest

from cpu_engine import tiny_model
from cpu_engine.tiny_model import TinyModel, ensure_model


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", TinyModel)
def test_a_recipe_always_gives_the_same_bytes(kind: TinyModel, tmp_path: Path) -> None:
    one, two = (ensure_model(kind, tmp_path / name) for name in ("one", "two"))
    assert contents(one) == contents(two)


def test_a_model_that_is_there_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ensure_model(TinyModel.QWEN2, tmp_path)
    monkeypatch.delattr(tiny_model, "write_model")
    assert ensure_model(TinyModel.QWEN2, tmp_path) == made


def test_an_interrupted_recipe_leaves_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(kind: TinyModel, folder: Path) -> None:
        (folder / "config.json").write_text("{")
        raise KeyboardInterrupt

    monkeypatch.setattr(tiny_model, "write_model", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ensure_model(TinyModel.QWEN2, tmp_path)
    assert list(tmp_path.iterdir()) == []
