"""Text has the ids of an independent tokenizer, from a directory and from a GGUF file, and so the answers are equal."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import specruntime
from specexport.build import build
from specexport.checkpoints.loading import load_checkpoint
from specexport.recipe.schema import Recipe, Target
from specexport.tokenizer.files import describe_tokenizer
from specruntime.text.codec import TextCodec
from tests.specexport.tokenizer.families import BUILT, CASES, Case

NAMED = {case.name: case for case in CASES}
PROMPTS = ("x =  12", "the quick  brown\n\n1. fox", " a 2024")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_checkpoint_splits_text_as_the_independent_tokenizer(
    cache: Path, tmp_path: Path, case: Case
) -> None:
    (tmp_path / "made").mkdir()
    checkpoint = load_checkpoint(Target(source=str(case.write(tmp_path / "made"))), "fp32")
    assert checkpoint.tokenizer is not None
    codec = TextCodec.open(
        checkpoint.tokenizer.parent, describe_tokenizer(checkpoint.tokenizer.parent, "files")
    )
    for text in case.texts:
        assert codec.encode(text) == list(case.ids(text)), text


@pytest.mark.parametrize("name", BUILT)
def test_a_bundle_answers_text_as_pytorch_fed_by_the_independent_tokenizer(
    cache: Path, tmp_path: Path, name: str
) -> None:
    case = NAMED[name]
    (tmp_path / "made").mkdir()
    source = str(case.write(tmp_path / "made"))
    recipe = Recipe.model_validate(
        {
            "name": "tiny",
            "target": {"source": source},
            "capacity": 64,
            "prefill_chunk": 8,
            "parity": {"tolerance": 1e-3, "tokens": 8},
            "check": {"prompts": [[1, 2]], "max_new_tokens": 4},
            "draft": {"kind": "none"},
        }
    )
    bundle = build(recipe, tmp_path / "tiny.bundle")
    checkpoint = load_checkpoint(recipe.target, "fp32")
    model: Any = checkpoint.model
    params = specruntime.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    texts = [text for text in PROMPTS if text in case.texts] or list(case.texts[:3])
    with specruntime.open_bundle(bundle) as opened:
        for text in texts:
            prompt = torch.tensor([list(case.ids(text))])
            with torch.inference_mode():
                expected = model.generate(prompt, max_new_tokens=8, do_sample=False, eos_token_id=None)
            codec = opened.tokenizer
            assert codec is not None
            deltas = specruntime.generate(opened.new_session(), codec.encode(text), params, codec)
            found = [token for delta in deltas for token in delta.tokens]
            np.testing.assert_array_equal(found, expected[0, prompt.shape[1] :], err_msg=text)
