"""End tokens and token tables, from tokenizer files written by hand."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from specexport.checkpoints.random_model import byte_tokenizer
from specexport.errors import CheckpointUnsupported, TokenizerMismatch
from specexport.tokenizer.files import end_token_ids, real_vocab_size, require_shared_vocabulary


def write_tokenizer(directory: Path, tokens: list[str], template: str = "", eos: object = None) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    table = {token: index for index, token in enumerate(tokens)}
    Tokenizer(models.WordLevel(vocab=table, unk_token=tokens[0])).save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    if template:
        (directory / "chat_template.jinja").write_text(template)
    return directory


def test_ends_are_those_of_configs_tokenizer_and_chat_template(tmp_path: Path) -> None:
    tokens = ["<s>", "</s>", "<|im_end|>", "<|eot_id|>", "a"]
    plain = write_tokenizer(tmp_path / "plain", tokens, eos={"content": "</s>"})
    chat = write_tokenizer(tmp_path / "chat", tokens, "{{ m }}<|im_end|>", eos="</s>")
    assert end_token_ids(plain, (None, None), 5) == (1,)
    assert end_token_ids(plain, ([4, 1], 4), 5) == (4, 1)
    assert end_token_ids(chat, (None, 1), 5) == (1, 2), (
        "a turn end that the template does not write is not an end"
    )
    assert end_token_ids(None, (3, [3, 2]), 5) == (3, 2)


def test_an_end_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(CheckpointUnsupported, match=r"eos_token_id: found 7, expected 0\.\.4"):
        end_token_ids(None, (7,), 5)


def test_the_real_size_is_the_tokenizers_as_far_as_there_are_rows(tmp_path: Path) -> None:
    directory = write_tokenizer(tmp_path, ["<unk>", "a", "b"])
    assert [real_vocab_size(directory, rows) for rows in (2, 3, 8)] == [2, 3, 3]
    assert real_vocab_size(None, 8) == 8


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (["<unk>", "a", "b"], None),
        (["<unk>", "b", "a"], "token 1 is 'b' in the draft and 'a' in the target"),
        (["<unk>", "a"], "token 2 is missing in the draft and 'b' in the target"),
        (["<unk>", "a", "b", "c"], "token 3 is 'c' in the draft and missing in the target"),
    ],
)
def test_tables_are_compared_token_by_token(tmp_path: Path, draft: list[str], message: str | None) -> None:
    ours = ("big", write_tokenizer(tmp_path / "target", ["<unk>", "a", "b"]), 3)
    theirs = ("small", write_tokenizer(tmp_path / "draft", draft), len(draft))
    if message is None:
        require_shared_vocabulary(ours, theirs)
        return
    with pytest.raises(
        TokenizerMismatch, match=f"draft small has another tokenizer than target big: {message}"
    ):
        require_shared_vocabulary(ours, theirs)


@given(st.text())
def test_the_byte_tokenizer_is_the_bytes_of_the_text(text: str) -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if "<|" not in text:
        assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text


def test_the_byte_tokenizer_wraps_chats_in_its_special_tokens() -> None:
    tokenizer = byte_tokenizer()
    message = [{"role": "user", "content": "hi"}]
    text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    assert tokenizer(str(text), add_special_tokens=False)["input_ids"] == [257, *b"hi", 256, 258]


def test_a_side_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    having = write_tokenizer(tmp_path / "having", ["a", "b"])
    with pytest.raises(TokenizerMismatch, match="target T has no tokenizer and draft D has one"):
        require_shared_vocabulary(("T", None, 2), ("D", having, 2))
    with pytest.raises(TokenizerMismatch, match="draft D has no tokenizer and target T has one"):
        require_shared_vocabulary(("T", having, 2), ("D", None, 2))
