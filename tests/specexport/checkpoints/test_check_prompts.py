"""A check prompt that no session could decode is refused while the bundle is built."""

import json
from pathlib import Path
from typing import Any

import pytest

from specexport.checkpoints.fitting import require_usable_prompts
from specexport.checkpoints.random_model import TOKENIZER_SIZE, write_byte_tokenizer
from specexport.errors import CheckpointUnsupported
from specexport.graph.canonical import TOKENIZER_DIRECTORY, CanonicalGraph
from specexport.graph.files import GraphFacts
from specexport.recipe.schema import Check

CAPACITY = 32


@pytest.fixture
def target(tmp_path: Path) -> CanonicalGraph:
    """What a build knows of a target with the byte tokenizer."""
    tokenizer = tmp_path / TOKENIZER_DIRECTORY
    write_byte_tokenizer(tokenizer)
    facts = GraphFacts(capacity=CAPACITY, layers=1, vocab_size=TOKENIZER_SIZE, padded_vocab_size=272)
    return CanonicalGraph("key", tmp_path, "tiny", facts, tokenizer, (256,), None)


def judge(target: CanonicalGraph, *prompts: Any, **settings: Any) -> None:
    check = {"prompts": list(prompts), "max_new_tokens": 8, **settings}
    require_usable_prompts(Check.model_validate_json(json.dumps(check)), target)


def test_prompts_that_just_fit_are_taken(target: CanonicalGraph) -> None:
    judge(target, "x" * 24, [0, 258] * 12)
    judge(target, "x" * 21, chat=True)  # the template adds three special tokens


@pytest.mark.parametrize(
    ("prompt", "settings", "message"),
    [
        (
            [5, 259],
            {},
            r"prompts\[1\]: found token id 259, expected 0\.\.258, the vocabulary of tiny; correct it",
        ),
        ([5, 1 << 70], {}, r"prompts\[1\]: found token id \d+, expected 0\.\.258"),
        (
            [5] * 25,
            {},
            r"prompts\[1\]: found 25 tokens, expected at most 24: capacity 32 less .*max_new_tokens 8",
        ),
        ("x" * 25, {}, r"prompts\[1\]: found 25 tokens, expected at most 24"),
        ("é" * 13, {}, r"prompts\[1\]: found 26 tokens, expected at most 24"),
        ("x" * 22, {"chat": True}, r"prompts\[1\]: found 25 tokens, expected at most 24"),
        ("x" * 4, {"max_new_tokens": 30}, r"prompts\[1\]: found 4 tokens, expected at most 2"),
    ],
)
def test_a_prompt_that_does_not_fit_is_named_with_what_is_allowed(
    target: CanonicalGraph, prompt: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointUnsupported, match=message) as caught:
        judge(target, "a", prompt, **settings)
    assert "\n" not in str(caught.value)


def test_a_template_that_is_missing_or_refuses_is_named(target: CanonicalGraph) -> None:
    assert target.tokenizer is not None
    template = target.tokenizer / "chat_template.jinja"
    template.write_text("{{ raise_exception('never') }}")
    with pytest.raises(
        CheckpointUnsupported, match=r"check\.prompts\[0\]: the chat template refuses .*never"
    ):
        judge(target, "a", chat=True)
    template.unlink()
    judge(target, "a")
    with pytest.raises(
        CheckpointUnsupported, match=r"check\.chat: found true, but tiny has no chat template"
    ):
        judge(target, "a", chat=True)
