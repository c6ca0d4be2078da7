"""Models with sliding windows, or windows switched off, build from three keys and answer as PyTorch does."""

from pathlib import Path

import pytest

from tests.specexport.export.published import Published, require_equal_answers, slow_but


@pytest.mark.parametrize("found", slow_but("windows", "mistral"))
def test_a_strangers_checkpoint_answers_as_pytorch_does(
    cache: Path, tmp_path: Path, found: Published
) -> None:
    require_equal_answers(found, tmp_path)
