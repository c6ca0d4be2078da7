"""The checkpoint of the shipped demo recipe, through every step from PyPI to PyTorch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from specexport.checkpoint import load_checkpoint
from specexport.recipe import load_recipe

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "smollm2-135m-ngram.yaml"


@pytest.mark.slow
def test_smollm2_loads_from_its_wheel_and_knows_the_capital_of_france(
    capfd: pytest.CaptureFixture[str],
) -> None:
    recipe = load_recipe(RECIPE)
    checkpoint = load_checkpoint(recipe.target, recipe.precision)
    assert capfd.readouterr() == ("", "")
    assert (checkpoint.vocab_size, checkpoint.padded_vocab_size, checkpoint.eos_token_ids) == (
        49152,
        49152,
        (2,),
    )
    assert checkpoint.source_digest == recipe.target.sha256
    tokenizer = AutoTokenizer.from_pretrained(checkpoint.tokenizer)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    prompt = torch.tensor([tokenizer(str(text), add_special_tokens=False)["input_ids"]])
    model: Any = checkpoint.model
    with torch.inference_mode():
        answer = model.generate(prompt, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, prompt.shape[1] :])
