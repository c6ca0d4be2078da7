"""Dense models with configs as published build from three keys and answer as PyTorch does."""

from pathlib import Path

import pytest

from tests.specexport.export.published import (
    Published,
    built_rows,
    other_rows,
    require_equal_answers,
    require_equal_windows,
)


@pytest.mark.parametrize("found", built_rows("dense", "gpt_neox"))
def test_a_strangers_checkpoint_answers_as_pytorch_does(
    cache: Path, tmp_path: Path, found: Published
) -> None:
    require_equal_answers(found, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("found", other_rows("dense"))
def test_the_windows_of_a_strangers_checkpoint_decode_as_pytorch_does(
    cache: Path, tmp_path: Path, found: Published
) -> None:
    require_equal_windows(found, tmp_path)
