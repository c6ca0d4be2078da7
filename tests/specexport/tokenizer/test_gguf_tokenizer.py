"""What a GGUF file says of its tokens and flags is carried out as llama.cpp does, or refused by name."""

from pathlib import Path
from typing import Any

import pytest
from gguf import TokenType
from tokenizers import Tokenizer, pre_tokenizers

from specexport.errors import CheckpointUnsupported
from specexport.tokenizer.gguf_tokenizer import write_gguf_tokenizer
from specexport.tokenizer.gguf_vocabulary import read_vocabulary
from tests.specexport.tokenizer.gguf_vocabularies import write_gguf

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_pairs(directory: Path, **metadata: Any) -> tuple[Tokenizer, tuple[str, ...]]:
    """The bytes, "ab" from one merge, and a token of each type."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*letters, "ab", "<bos>", "<eos>", "<think>", "<unk>", "[PAD260]"]
    types = [TokenType.NORMAL] * 257 + [
        TokenType.CONTROL,
        TokenType.CONTROL,
        TokenType.USER_DEFINED,
        TokenType.UNKNOWN,
        TokenType.UNUSED,
    ]
    stated = {
        "model": "gpt2",
        "pre": "gpt-2",
        "merges": ["a b"],
        "bos_token_id": 257,
        "eos_token_id": 258,
        **metadata,
    }
    stated = {key: value for key, value in stated.items() if value is not None}
    path = write_gguf(directory / "tiny.gguf", tokens, types, **stated)
    notes = write_gguf_tokenizer("tiny.gguf", path, directory / "to")
    return Tokenizer.from_file(str(directory / "to" / "tokenizer.json")), notes


def pieces(directory: Path, **metadata: Any) -> Tokenizer:
    """SentencePiece byte pairs: bytes, a few letters and "ab"."""
    tokens = ["<unk>", "<s>", "</s>", *BYTES, "▁", "a", "b", "ab", "▁a"]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    types += [TokenType.NORMAL] * 5
    scores = [0.0] * 259 + [-10.0, -11.0, -12.0, -1.0, -2.0]
    stated = {"model": "llama", "scores": scores, **metadata}
    stated = {key: value for key, value in stated.items() if value is not None}
    path = write_gguf(directory / "tiny.gguf", tokens, types, **stated)
    write_gguf_tokenizer("tiny.gguf", path, directory / "to")
    return Tokenizer.from_file(str(directory / "to" / "tokenizer.json"))


def test_types_say_which_tokens_are_found_in_text_and_which_are_special(tmp_path: Path) -> None:
    tokenizer, notes = byte_pairs(tmp_path)
    assert notes == ()
    found = tokenizer.encode("ab<think>ab<eos><unk>").tokens
    assert found == ["ab", "<think>", "ab", "<eos>", "<unk>"]
    assert "[PAD260]" not in tokenizer.encode("[PAD260]").tokens
    special = {token.content: token.special for token in tokenizer.get_added_tokens_decoder().values()}
    assert special == {"<bos>": True, "<eos>": True, "<unk>": True, "<think>": False}
    assert tokenizer.get_vocab_size() == 262


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, ["ab"]),
        ({"add_bos_token": True, "add_eos_token": True}, ["<bos>", "ab", "<eos>"]),
        ({"pre": "llama-bpe"}, ["<bos>", "ab"]),
        ({"pre": "llama-bpe", "add_bos_token": False}, ["ab"]),
    ],
)
def test_tokens_around_a_text_follow_the_flags_or_llama_cpps_assumption(
    tmp_path: Path, metadata: dict[str, Any], expected: list[str]
) -> None:
    assert byte_pairs(tmp_path, **metadata)[0].encode("ab").tokens == expected


def test_a_llama_vocabulary_begins_with_bos_and_a_space_unless_told_otherwise(tmp_path: Path) -> None:
    assert pieces(tmp_path).encode("ab</s>b c").tokens == ["<s>", "▁", "ab", "</s>", "▁", "b", "▁", "<0x63>"]
    plain = pieces(tmp_path, add_bos_token=False, add_space_prefix=False)
    assert plain.encode("ab</s>b").tokens == ["ab", "</s>", "b"]
    assert plain.decode(plain.encode("a b\n").ids) == "a b\n"


@pytest.mark.parametrize("pre", [None, "default"])
def test_a_file_that_names_no_rule_is_said_to_be_split_by_the_default(
    tmp_path: Path, pre: str | None
) -> None:
    _, notes = byte_pairs(tmp_path, pre=pre)
    assert len(notes) == 1
    assert "llama.cpp's default" in notes[0]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"model": "bert"}, r"tokenizer\.ggml\.model is 'bert', expected one of gpt2, llama, t5"),
        ({"model": "rwkv"}, r"tokenizer\.ggml\.model is 'rwkv'"),
        ({"model": "plamo2"}, r"tokenizer\.ggml\.model is 'plamo2'"),
        (
            {"suppress_tokens": [3]},
            r"tokenizer\.ggml\.suppress_tokens asks for tokens that must never be sampled",
        ),
        ({"add_sep_token": True}, r"tokenizer\.ggml\.add_sep_token asks for a separator"),
        (
            {"treat_whitespace_as_suffix": True},
            r"states tokenizer\.ggml\.treat_whitespace_as_suffix, whose effect",
        ),
        ({"add_bos_token": True, "bos_token_id": None}, r"a bos token is added .*bos_token_id is not there"),
        ({"eot_token_id": 999}, r"eot_token_id: found 999, expected 0\.\.261"),
        ({"eom_token_id": 999}, r"eom_token_id: found 999, expected 0\.\.261"),
        ({"bos_token_id": 999}, r"bos_token_id: found 999, expected 0\.\.261"),
        ({"merges": ["a c", "x y"]}, r"joins 'a' and 'c', but 'ac' is not among its tokens"),
        ({"merges": ["ab"]}, r"merges: found 'ab', expected two tokens"),
        ({"scores": [0.5]}, r"scores: found 1 entries, expected 262"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_by_its_key(
    tmp_path: Path, metadata: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointUnsupported, match=message):
        byte_pairs(tmp_path, **metadata)


def test_score_vocabularies_without_scores_are_refused_by_that(tmp_path: Path) -> None:
    with pytest.raises(CheckpointUnsupported, match=r"a llama vocabulary without tokenizer\.ggml\.scores"):
        pieces(tmp_path, scores=None)
    with pytest.raises(
        CheckpointUnsupported, match=r"a llama vocabulary without 256 of the 256 tokens for bytes"
    ):
        byte_pairs(tmp_path, model="llama", scores=[0.0] * 262)


@pytest.mark.parametrize(
    ("extra", "stated", "expected"),
    [
        ([], {}, ["z"]),
        (["turn!", "more!"], {"eot_token_id": 3, "eom_token_id": 4}, ["z", "turn!", "more!"]),
        (["<|eot_id|>", "<end_of_turn>", "<|start_header_id|>"], {}, ["z", "<|eot_id|>", "<end_of_turn>"]),
        (["<|file_sep|>", "<PAD>", "<|fim_prefix|>"], {}, ["z", "<|file_sep|>", "<PAD>"]),
        (["mark", "<PAD>"], {"fim_pad_token_id": 3}, ["z", "mark"]),
        (["<|end|>"], {}, ["z", "<|end|>"]),
        (["<|end|>", "<|return|>", "<|call|>"], {}, ["z", "<|return|>", "<|call|>"]),
        (["</s>", "<|tool_response>", "<turn|>"], {}, ["z", "<|tool_response>", "<turn|>"]),
    ],
)
def test_answers_end_where_llama_cpp_ends_them(
    tmp_path: Path, extra: list[str], stated: dict[str, Any], expected: list[str]
) -> None:
    """Expected: `special_eog_ids` as src/llama-vocab.cpp fills it."""
    tokens = ["x", "y", "z", *extra]
    path = write_gguf(
        tmp_path / "a.gguf", tokens, [TokenType.NORMAL] * len(tokens), model="gpt2", eos_token_id=2, **stated
    )
    vocabulary = read_vocabulary("a.gguf", path)
    assert vocabulary is not None
    assert [tokens[index] for index in vocabulary.ends] == expected
