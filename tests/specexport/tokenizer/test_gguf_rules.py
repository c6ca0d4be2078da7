"""A rule named in a GGUF file cuts text as the tokenizer.json it was made for, and as llama.cpp's expressions do."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any
from unicodedata import combining

import pytest
import regex  # type: ignore[import-untyped]
from gguf import TokenType
from tokenizers import Tokenizer

from specexport.errors import CheckpointUnsupported
from specexport.tokenizer.gguf_rules import SPLIT_RULES, pre_tokenizer
from specexport.tokenizer.gguf_tokenizer import write_gguf_tokenizer
from specexport.tokenizer.probes import PROBE_TEXTS
from tests.specexport.tokenizer.gguf_vocabularies import TEXTS, byte_level_model, write_gguf
from tests.specexport.tokenizer.llama_cpp_rules import LLAMA_CPP_RULES

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
GPT2 = {**BYTES, "use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


# The `pre_tokenizer` of the tokenizer.json that each model was published with.
PUBLISHED: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [GPT2],
    "smollm": [DIGITS, GPT2],
    "starcoder": [DIGITS, GPT2],
    "llama-bpe": [
        split(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
            r"|\s+(?!\S)|\s+"
        ),
        BYTES,
    ],
    "qwen2": [
        split(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
            r"|\s+(?!\S)|\s+"
        ),
        BYTES,
    ],
    "tekken": [
        split(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?"
            r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
            r"|\s+(?!\S)|\s+"
        ),
        BYTES,
    ],
    "deepseek-v3": [
        split(r"\p{N}{1,3}"),
        split("[一-龥\u3040-ゟ゠-ヿ]+"),
        split(
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
        BYTES,
    ],
    "falcon": [
        {"type": "Punctuation", "behavior": "Contiguous"},
        GPT2,
        {"type": "Digits", "individual_digits": False},
        split("[0-9][0-9][0-9]"),
    ],
}


def published(parts: list[dict[str, Any]], ignore_merges: bool) -> Tokenizer:
    """A tokenizer.json written by hand around the same byte pairs."""
    model = json.loads(Tokenizer(byte_level_model()).to_str())["model"]
    special = [
        {
            "id": index,
            "content": token,
            "special": True,
            "normalized": False,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
        }
        for index, token in enumerate(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    ]
    return Tokenizer.from_str(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": special,
                "pre_tokenizer": {"type": "Sequence", "pretokenizers": parts},
                "model": {**model, "ignore_merges": ignore_merges},
            }
        )
    )


def from_gguf(directory: Path, **metadata: Any) -> Tokenizer:
    model = json.loads(Tokenizer(byte_level_model()).to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    types = [TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(tokens) - 3)
    stated = {
        "model": "gpt2",
        "merges": [" ".join(merge) for merge in model["merges"]],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_bos_token": False,
        **metadata,
    }
    stated = {key: value for key, value in stated.items() if value is not None}
    path = write_gguf(directory / "tiny.gguf", tokens, types, **stated)
    write_gguf_tokenizer("tiny.gguf", path, directory / "out")
    return Tokenizer.from_file(str(directory / "out" / "tokenizer.json"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_rule_gives_the_ids_of_the_published_tokenizer(tmp_path: Path, name: str) -> None:
    expected = published(PUBLISHED[name], ignore_merges=name in ("llama-bpe", "tekken"))
    found = from_gguf(tmp_path, pre=name)
    for text in [*TEXTS, f"a<|im_end|>\n{TEXTS[0]}<|im_start|>12"]:
        assert found.encode(text).tokens == expected.encode(text).tokens, text


def pieces_of_llama_cpp(text: str, patterns: tuple[str, ...]) -> list[str]:
    """Each expression cuts the pieces of the one before: its matches, and what lies between two of them."""
    pieces = [text]
    for pattern in patterns:
        bounds = [
            sorted(
                {0, len(piece), *(edge for match in regex.finditer(pattern, piece) for edge in match.span())}
            )
            for piece in pieces
        ]
        pieces = [
            piece[start:end]
            for piece, edges in zip(pieces, bounds, strict=True)
            for start, end in pairwise(edges)
        ]
    return pieces


@pytest.mark.parametrize("name", LLAMA_CPP_RULES)
def test_a_rule_cuts_text_as_llama_cpps_expressions_do(name: str) -> None:
    found = pre_tokenizer(SPLIT_RULES[name])
    for text in (*TEXTS, *PROBE_TEXTS):
        if has_cased_letters_beyond_ascii(text) and name in ("tekken", "gpt-4o"):
            continue  # llama.cpp's lookaheads know the case of ASCII letters only, the published expression of all
        pieces = [text[start:end] for _, (start, end) in found.pre_tokenize_str(text)]
        assert pieces == pieces_of_llama_cpp(text, LLAMA_CPP_RULES[name]), text


def has_cased_letters_beyond_ascii(text: str) -> bool:
    return any(not letter.isascii() and (letter.isalpha() or combining(letter)) for letter in text)


def test_every_rule_is_held_to_one_of_the_two_sources() -> None:
    held = {id(SPLIT_RULES[name].steps) for name in (*LLAMA_CPP_RULES, *PUBLISHED)}
    others = [name for name, rule in SPLIT_RULES.items() if id(rule.steps) not in held]
    assert others == []


def test_smollm_takes_digits_apart_before_all_else(tmp_path: Path) -> None:
    found = from_gguf(tmp_path, pre="smollm")
    # by hand: the pieces are "\n\n", "1", ". a", "1", "0" and " x", which have no merge over their bounds
    pieces = found.pre_tokenizer.pre_tokenize_str("\n\n1. a10 x")
    assert [piece for piece, _ in pieces] == ["ĊĊ", "1", ".", "Ġa", "1", "0", "Ġx"]


def test_a_rule_that_is_not_carried_out_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointUnsupported, match=r"tokenizer\.ggml\.pre is kimi-k2, which is not carried out"
    ):
        from_gguf(tmp_path, pre="kimi-k2")
    with pytest.raises(CheckpointUnsupported, match=r"is 'smolm', which is not .*; did you mean 'smollm'\?"):
        from_gguf(tmp_path, pre="smolm")


def test_a_vocabulary_without_merges_is_refused_by_that(tmp_path: Path) -> None:
    with pytest.raises(CheckpointUnsupported, match=r"a gpt2 vocabulary without tokenizer\.ggml\.merges"):
        from_gguf(tmp_path, pre="gpt-2", merges=None)
