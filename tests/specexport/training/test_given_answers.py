"""Conversations that bring their answer are trained on as they are, also where this project cannot write answers."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaModel

from specexport.checkpoints.loading import Checkpoint, known_config, known_tokenizer
from specexport.errors import CheckpointUnsupported, TrainingRefused
from specexport.recipe.schema import Recipe, load_recipe
from specexport.training import pipeline as run
from specexport.training.decoding import require_decodable
from specexport.training.kinds import Kind
from specexport.training.pipeline import ANSWERS, Order, Reports, train_draft
from specexport.training.prompt_codec import PromptCodec
from specexport.training.prompts_file import Conversation, append_prompts, read_prompts, read_training_text
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
    prompt, answer = PromptCodec.of(target).encode_answered(Conversation("it:1", tuple(TURNS)), (END,))
    expected = tokenizer.apply_chat_template(TURNS[:-1], add_generation_prompt=True, tokenize=False)
    assert list(prompt) == tokenizer.encode(expected, add_special_tokens=False)
    whole = tokenizer.apply_chat_template(TURNS, tokenize=False)
    assert [*prompt, *answer] == tokenizer.encode(whole, add_special_tokens=False)
    assert answer[-1] == END


def merging(root: Path, prefix_space: bool = False) -> PromptCodec:
    """A byte-level vocabulary with tokens of several newlines, as Qwen's and Llama's have, and a template of ChatML."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    newline = "\u010a"
    words = [*alphabet, newline * 2, newline * 3]
    model = models.BPE(
        vocab={word: n for n, word in enumerate(words)},
        merges=[(newline, newline), (newline * 2, newline)],
    )
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=False)
    made.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>")
    wrapped.chat_template = (
        "{% for m in messages %}{{ '<' + m.role + '>\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<assistant>\n' }}{% endif %}"
    )
    wrapped.save_pretrained(root)
    return PromptCodec.open("it", root)


@pytest.mark.parametrize("start", ["", "\n", "\n\n", "\n\n\n\n"])
def test_an_answer_whose_newlines_merge_with_the_templates_is_what_follows_the_prompt(
    tmp_path: Path, start: str
) -> None:
    codec = merging(tmp_path)
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path)
    end = tokenizer.eos_token_id
    turns = [{"role": "user", "content": "one"}, {"role": "assistant", "content": start + "two"}]
    prompt, answer = codec.encode_answered(Conversation("it:1", tuple(turns)), (end,))
    expected = tokenizer.apply_chat_template(turns[:-1], add_generation_prompt=True)["input_ids"]
    assert list(prompt) == expected
    assert tokenizer.decode(answer) == f"{start}two<|im_end|>"
    assert tokenizer.decode([*prompt, *answer]) + "\n" == tokenizer.apply_chat_template(turns, tokenize=False)


def test_an_answer_that_cannot_be_read_apart_is_refused_by_its_line_and_the_reason(tmp_path: Path) -> None:
    codec = merging(tmp_path, prefix_space=True)  # what begins a text gets a space
    turns = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "\n\ntwo"}]
    with pytest.raises(TrainingRefused, match=r"it:7: the answer's first characters share a token"):
        codec.encode_answered(Conversation("it:7", tuple(turns)), (0,))


@pytest.mark.parametrize("content", ["two<|im_end|>", "two<|im_end|>\n", "two<|im_end|>\n<|im_end|>"])
def test_an_answer_ends_once(tmp_path: Path, content: str) -> None:
    codec = merging(tmp_path)
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path)
    end = tokenizer.eos_token_id
    turns = [{"role": "user", "content": "one"}, {"role": "assistant", "content": content}]
    _, answer = codec.encode_answered(Conversation("it:1", tuple(turns)), (end,))
    assert tokenizer.decode(answer) == "two<|im_end|>"
    turns[1] = {"role": "assistant", "content": "<|im_end|>two"}
    with pytest.raises(TrainingRefused, match=r"it:2: the answer begins with the token that ends it"):
        codec.encode_answered(Conversation("it:2", tuple(turns)), (end,))


def test_without_a_template_an_answer_follows_its_prompt_and_ends(target: Checkpoint, tmp_path: Path) -> None:
    assert target.tokenizer is not None
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in target.tokenizer.iterdir():
        if path.name != "chat_template.jinja":
            (bare / path.name).write_bytes(path.read_bytes())
    codec = PromptCodec.open("it", bare)
    found = codec.encode_answered(Conversation("it:1", tuple(TURNS[:2])), (END,))
    assert found == (tuple(b"one"), (*b"two", END))
    parts: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "one"}]}, TURNS[1]]
    for messages in (tuple(TURNS), tuple(parts)):
        with pytest.raises(TrainingRefused, match=r"it:2: .*without a chat template and messages of several"):
            codec.encode_answered(Conversation("it:2", messages), (END,))


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
        (
            {"messages": [{"role": "user"}, TURNS[1]]},
            r"message 1 is \{'role': 'user'\}, expected a role and a",
        ),
        ({"messages": [TURNS[0], {**TURNS[1], "content": None}, *TURNS[2:]]}, "message 2 is "),
        ({"messages": [{"role": "user", "content": 7}, TURNS[1]]}, "message 1 is "),
        ({"messages": "one"}, "messages is 'one'"),
        ({"messages": ["one", "two"]}, "messages is "),
        ({"prompt": "one", "messages": TURNS}, "found both prompt and messages, expected one of them"),
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
    assert read_training_text(path) == (["a"], [Conversation(f"{path}:2", tuple(TURNS))])
    with pytest.raises(TrainingRefused, match=r"it\.jsonl:2"):
        read_prompts(path)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% if messages[0].role != 'user' %}{{ raise_exception('no system') }}{% endif %}x", "no system"),
        ("{{ messages | length }}", "the start of the answer cannot be found"),
    ],
)
def test_messages_that_the_template_refuses_are_refused_by_their_line_before_the_weights_are_read(
    recipe: Recipe,
    order: Callable[[Kind], Order],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    template: str,
    words: str,
) -> None:
    place = known_tokenizer(recipe.target)
    assert place is not None
    changed = shutil.copytree(place, tmp_path / "changed")
    (changed / "chat_template.jinja").write_text(template)
    wanted = order("medusa")
    system = [{"role": "system", "content": "be brief"}, *TURNS[:2]]
    wanted.prompts.write_text(conversations(0) + "\n" + json.dumps({"messages": system}) + "\n")
    monkeypatch.setattr(run, "known_tokenizer", lambda spec: changed)
    monkeypatch.setattr(run, "load_checkpoint", None)
    with pytest.raises(TrainingRefused, match=rf"prompts\.jsonl:2: found .*{words}"):
        train_draft(recipe, wanted, Reports())


def test_text_that_cannot_be_trained_on_is_refused_before_the_weights_are_read(
    recipe: Recipe, order: Callable[[Kind], Order], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "load_checkpoint", None)
    wanted = order("medusa")
    for prompts, answer_tokens, words in (
        (["question 0"], 16, "none of which is among the 1 in 40"),
        (["x" * 600], 16, "every prompt is longer than 496 tokens"),
        (["x"], 512, "--answer-tokens: found 512, expected less than 512"),
    ):
        wanted.prompts.unlink()
        append_prompts(wanted.prompts, prompts)
        with pytest.raises(TrainingRefused, match=words):
            train_draft(recipe, replace(wanted, answer_tokens=answer_tokens), Reports())


def test_a_model_that_cannot_be_tried_without_weights_is_refused_or_said(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = known_config(recipe.target)
    assert config is not None
    assert require_decodable(config) is None
    with monkeypatch.context() as patched:

        def fail(*arguments: object, **options: object) -> None:
            raise RuntimeError("aten::item has no value")

        patched.setattr(LlamaModel, "forward", fail)
        assert require_decodable(config) == "aten::item has no value"
    config.hidden_act = "nosuch"
    with pytest.raises(CheckpointUnsupported, match=r"llama: no model can be made of its config: .*nosuch"):
        require_decodable(config)


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
