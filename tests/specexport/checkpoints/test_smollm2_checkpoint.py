"""The checkpoint of the shipped demo recipe, through every step from PyPI to PyTorch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoTokenizer

from specexport.checkpoints.loading import load_checkpoint
from specexport.recipe.schema import load_recipe
from specexport.tokenizer.probes import PROBE_TEXTS

RECIPE = Path(__file__).resolve().parents[3] / "recipes" / "smollm2-135m-ngram.yaml"


def require_published_pipeline(directory: Path) -> None:
    """The ids of SmolLM2's own tokenizer.json: digits come apart, then GPT-2's expression cuts; BPE without more."""
    file = str(directory / "tokenizer.json")
    found, published = Tokenizer.from_file(file), Tokenizer.from_file(file)
    published.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    for text in PROBE_TEXTS:
        assert found.encode(text).ids == published.encode(text).ids, text
    assert found.encode("\n\n1. a").tokens == ["ĊĊ", "1", ".", "Ġa"]
    assert [found.id_to_token(index) for index in (0, 1, 2, 16)] == [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<empty_output>",
    ]


@pytest.mark.slow
def test_smollm2_loads_from_its_wheel_and_knows_the_capital_of_france(
    capfd: pytest.CaptureFixture[str],
) -> None:
    recipe = load_recipe(RECIPE)
    checkpoint = load_checkpoint(recipe.target, recipe.precision)
    assert capfd.readouterr() == ("", "")
    # The file names <|im_end|>; llama.cpp ends answers at <|endoftext|> and <reponame> too, by their texts.
    assert (checkpoint.vocab_size, checkpoint.padded_vocab_size, checkpoint.eos_token_ids) == (
        49152,
        49152,
        (2, 0, 4),
    )
    assert checkpoint.source_digest == recipe.target.sha256
    assert checkpoint.tokenizer is not None
    require_published_pipeline(checkpoint.tokenizer)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint.tokenizer)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    prompt = torch.tensor([tokenizer(str(text), add_special_tokens=False)["input_ids"]])
    model: Any = checkpoint.model
    with torch.inference_mode():
        answer = model.generate(prompt, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, prompt.shape[1] :])
