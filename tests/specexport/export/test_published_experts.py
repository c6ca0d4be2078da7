"""Mixtures of experts with configs as published build from three keys and answer as PyTorch does."""

from pathlib import Path

import pytest

from tests.specexport.export.published import Published, require_equal_answers, slow_but


@pytest.mark.parametrize("found", slow_but("experts", "qwen2_moe"))
def test_a_strangers_checkpoint_answers_as_pytorch_does(
    cache: Path, tmp_path: Path, found: Published
) -> None:
    require_equal_answers(found, tmp_path)
