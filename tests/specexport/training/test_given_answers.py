"""Conversations that bring their answer are trained on as they are, also where this project cannot write answers."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from specexport.checkpoint import Checkpoint
from specexport.errors import TrainingRefused
from specexport.recipe import load_recipe
from specexport.training import run
from specexport.training.kinds import Kind
from specexport.training.prompt_codec import PromptCodec
from specexport.training.prompts_file import read_prompts, read_training_text
from specexport.training.run import ANSWERS, Order, Reports, train_draft
from tests.specexport.training.conftest import RECIPE

END = 256
TURNS = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
    {"role": "assistant", "content": " four\n"},
]
GPT_OSS = (
    RECIPE.replace("llama", "gpt_oss")
    .replace(
        "num_hidden_layers: 6",
        "num_hidden_layers: 6, head_dim: 8, num_local_experts: 2, num_experts_per_tok: 1",
    )
    .replace(
        "sizes: {", "sizes: {pad_token_id: 0, rope_parameters: {rope_type: default, rope_theta: 10000.0}, "
    )
)


def conversations(count: int) -> str:
    lines = (
        [
            {"role": "user", "content": f"question {n}"},
            {"role": "assistant", "content": f"the answer is {n % 7}"},
        ]
        for n in range(count)
    )
    return "".join(json.dumps({"messages": line}) + "\n" for line in lines)


def test_answers_are_what_transformers_template_writes_after_the_prompt(target: Checkpoint) -> None:
    assert target.tokenizer is not None
    tokenizer = AutoTokenizer.from_pretrained(target.tokenizer)
    prompt, answer = PromptCodec.of(target).encode_answered(tuple(TURNS), (END,))
    expected = tokenizer.apply_chat_template(TURNS[:-1], add_generation_prompt=True, tokenize=False)
    assert list(prompt) == tokenizer.encode(expected, add_special_tokens=False)
    whole = tokenizer.apply_chat_template(TURNS, tokenize=False)
    assert [*prompt, *answer] == tokenizer.encode(whole, add_special_tokens=False)
    assert answer[-1] == END


def test_without_a_template_an_answer_follows_its_prompt_and_ends(target: Checkpoint, tmp_path: Path) -> None:
    assert target.tokenizer is not None
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in target.tokenizer.iterdir():
        if path.name != "chat_template.jinja":
            (bare / path.name).write_bytes(path.read_bytes())
    codec = PromptCodec.open("it", bare)
    found = codec.encode_answered(tuple(TURNS[:2]), (END,))
    assert found == (tuple(b"one"), (*b"two", END))
    with pytest.raises(TrainingRefused, match="without a chat template and messages of several turns"):
        codec.encode_answered(tuple(TURNS), (END,))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"messages": TURNS[:1]}, "expected a question and then the answer"),
        ({"messages": TURNS[1:2]}, "expected a question and then the answer"),
        ({"messages": [*TURNS[:3]]}, "expected a question and then the answer"),
        (
            {"messages": [TURNS[0], {"role": "assistant", "content": " "}]},
            "expected a question and then the answer",
        ),
        ({"messages": "one"}, "messages is 'one'"),
        ({"messages": ["one", "two"]}, "messages is "),
        ({"text": "one"}, r'expected \{"prompt": text\} or \{"messages": \[...\]\}'),
    ],
)
def test_a_line_without_an_answer_is_refused_by_its_number(line: object, words: str, tmp_path: Path) -> None:
    path = tmp_path / "it.jsonl"
    path.write_text(json.dumps({"prompt": "fine"}) + "\n" + json.dumps(line) + "\n")
    with pytest.raises(TrainingRefused, match=rf"it\.jsonl:2: .*{words}"):
        read_training_text(path)


def test_prompts_and_conversations_are_read_from_one_file_each_once(tmp_path: Path) -> None:
    path = tmp_path / "it.jsonl"
    lines = [{"prompt": "a"}, {"messages": TURNS}, {"prompt": "a"}, {"messages": TURNS}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_training_text(path) == (["a"], [tuple(TURNS)])
    with pytest.raises(TrainingRefused, match=r"it\.jsonl:2"):
        read_prompts(path)


def test_a_target_with_sinks_is_refused_before_its_weights_are_read_and_its_cure_works(
    cache: Path, order: Callable[[Kind], Order], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sinks.yaml"
    path.write_text(GPT_OSS)
    made = order("eagle3")
    recipe, wanted = load_recipe(path), replace(made, plan=replace(made.plan, epochs=1))
    with monkeypatch.context() as patched:
        patched.setattr(run, "load_checkpoint", None)
        with pytest.raises(TrainingRefused, match=r"attention has sinks .*with answers, \{.messages.: "):
            train_draft(recipe, wanted, Reports())
    wanted.prompts.write_text(conversations(80))
    shares = train_draft(recipe, wanted, Reports())
    assert all(0 <= share <= 1 for share in shares)
    assert not (wanted.work / ANSWERS).exists()
    assert (wanted.out / "model.safetensors").is_file()
