"""Reads the tokenizer that a GGUF file states: its tokens, their types and scores, merges and flags.

Every key under `tokenizer.` is used, known to change no text, or refused. Source: `gguf-py/gguf/constants.py` and
`src/llama-vocab.cpp` of llama.cpp.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers.integrations.gguf.reader import read_gguf_metadata

from specexport.errors import CheckpointUnsupported, reason_of

_PREFIX = "tokenizer."
_NAME = "general.name"
_USED = (
    "model pre tokens token_type scores merges bos_token_id eos_token_id eot_token_id eom_token_id "
    "unknown_token_id padding_token_id fim_pad_token_id fim_rep_token_id fim_sep_token_id add_bos_token add_eos_token "
    "add_space_prefix remove_extra_whitespaces precompiled_charsmap"
)
# They name tokens for uses that no text of a prompt has, or repeat what other keys say.
_HARMLESS = (
    "added_tokens token_type_count seperator_token_id cls_token_id mask_token_id prefix_token_id "
    "suffix_token_id middle_token_id fim_pre_token_id fim_suf_token_id fim_mid_token_id"
)
_KNOWN = frozenset(f"ggml.{key}" for key in f"{_USED} {_HARMLESS}".split()) | {
    _NAME,
    "chat_template",
    "chat_templates",
    "huggingface.json",
}
_REFUSED_WHEN_SET = {
    "ggml.add_sep_token": "a separator after each text",
    "ggml.suppress_tokens": "tokens that must never be sampled",
    "ggml.normalizer.lowercase": "lower case",
    "ggml.normalizer.strip_accents": "accents taken off",
}
_IDS = (
    *("bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id", "unknown_token_id", "padding_token_id"),
    *("fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id"),
)
# What llama.cpp assumes of a model where the file names no id.
_DEFAULT_IDS = {
    "llama": {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0},
    "t5": {"eos_token_id": 1, "unknown_token_id": 2, "padding_token_id": 0},
}
# Tokens that end an answer in llama.cpp by their text, whatever the file's ids and chat template say.
_ENDS = (
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> "
    "<|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> "
    "<｜end▁of▁sentence｜> [e~["
)
# Tokens around the parts of a program that is filled in, which end an answer too; by text where the file has no id.
_FILL_ENDS = {
    "fim_pad_token_id": "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]",
    "fim_rep_token_id": "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>",
    "fim_sep_token_id": "<|file_sep|>",
}
# llama.cpp takes these for control tokens whatever type the file gives them.
_ALWAYS_CONTROL = frozenset(
    " ".join(
        (
            _ENDS,
            *_FILL_ENDS.values(),
            "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> <|prefix|>",
            "<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> <|suffix|>",
            "<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> <|middle|>",
        )
    ).split()
)


class TokenType(IntEnum):
    """`llama_token_type` of llama.cpp."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class GgufVocabulary:
    """What the file says, checked; ids are None and flags are None where it does not say.

    `scores` is None where the file has none; `merges` are pairs in the order in which they apply, None likewise.
    """

    source: str
    model: str
    pre: str | None
    name: str  # of the model, as `general.name` gives it
    tokens: tuple[str, ...]
    types: tuple[TokenType, ...]
    scores: tuple[float, ...] | None
    merges: tuple[tuple[str, str], ...] | None
    bos: int | None
    eos: int | None
    unknown: int | None
    padding: int | None
    ends: tuple[int, ...]  # ids that end an answer, `eos` first where there is one
    add_bos: bool | None
    add_eos: bool | None
    add_space_prefix: bool | None
    remove_extra_whitespaces: bool | None
    charsmap: bytes
    chat_template: str | None

    def text_of(self, index: int | None) -> str | None:
        """Return the token of an id."""
        return None if index is None else self.tokens[index]

    def of_type(self, *types: TokenType) -> list[str]:
        """Return the tokens of these types, by id."""
        return [token for token, kind in zip(self.tokens, self.types, strict=True) if kind in types]


@dataclass(frozen=True)
class BuiltTokenizer:
    """What a vocabulary became: its tokenizer before added tokens, and what holds where the file has no flag.

    `notes` are lines for the build to say after the file's name.
    """

    tokenizer: Tokenizer
    add_bos: bool = False
    add_eos: bool = False
    notes: tuple[str, ...] = ()


def read_vocabulary(source: str, path: Path) -> GgufVocabulary | None:
    """Return the file's tokenizer; None where it states none. Raises `CheckpointUnsupported` for what cannot be carried
    out.

    `source` is what messages call the file.
    """
    fields = _fields(source, path)
    if fields.get("ggml.model", "none") in ("none", "no_vocab"):
        return None
    _require_known(source, fields)
    tokens = _tokens(source, fields)
    count = len(tokens)
    types = fields.get("ggml.token_type")
    kinds = (
        [TokenType.NORMAL] * count if types is None else [_type_of(source, value) for value in types[:count]]
    )
    scores = fields.get("ggml.scores")
    for key, values in (("token_type", kinds), ("scores", scores)):
        if values is not None and len(values) < count:
            raise _refused(source, key, f"{len(values)} entries", f"{count}, one for each token")
    merges = fields.get("ggml.merges")
    assumed = _DEFAULT_IDS.get(fields["ggml.model"], {})
    ids = {key: _token_id(source, key, fields.get(f"ggml.{key}", assumed.get(key)), count) for key in _IDS}
    return GgufVocabulary(
        source=source,
        model=str(fields["ggml.model"]),
        pre=fields.get("ggml.pre") or None,
        name=str(fields[_NAME]),
        tokens=tokens,
        types=tuple(
            TokenType.CONTROL if token in _ALWAYS_CONTROL else kind
            for token, kind in zip(tokens, kinds, strict=True)
        ),
        scores=None if scores is None else tuple(float(score) for score in scores[:count]),
        merges=None if merges is None else tuple(_pair(source, merge) for merge in merges),
        bos=ids["bos_token_id"],
        eos=ids["eos_token_id"],
        unknown=ids["unknown_token_id"],
        padding=ids["padding_token_id"],
        ends=_end_ids(tokens, ids),
        add_bos=_flag(source, fields, "add_bos_token"),
        add_eos=_flag(source, fields, "add_eos_token"),
        add_space_prefix=_flag(source, fields, "add_space_prefix"),
        remove_extra_whitespaces=_flag(source, fields, "remove_extra_whitespaces"),
        charsmap=bytes(value & 0xFF for value in fields.get("ggml.precompiled_charsmap", ())),
        chat_template=fields.get("chat_template"),
    )


def _fields(source: str, path: Path) -> dict[str, Any]:
    """Return the values under `tokenizer.` without that prefix, and the model's name."""
    try:
        found, _ = read_gguf_metadata(str(path), (f"{_PREFIX}ggml.tokens", f"{_PREFIX}ggml.merges"))
    except Exception as error:  # the reader fails in any way on a damaged file, down to struct.error
        raise CheckpointUnsupported(f"{source}: its tokenizer cannot be read: {reason_of(error)}") from None
    fields = {key.removeprefix(_PREFIX): value for key, value in found.items() if key.startswith(_PREFIX)}
    return {**fields, _NAME: found.get(_NAME, "")}


def _require_known(source: str, fields: Mapping[str, Any]) -> None:
    for key, value in fields.items():
        if key in _KNOWN or key.startswith("chat_template."):
            continue
        if key not in _REFUSED_WHEN_SET:
            raise CheckpointUnsupported(
                f"{source}: states {_PREFIX}{key}, whose effect on text is not known here; expected the keys that "
                "llama.cpp writes for this kind of tokenizer"
            )
        if value:
            raise CheckpointUnsupported(
                f"{source}: {_PREFIX}{key} asks for {_REFUSED_WHEN_SET[key]}, which is not carried out; expected a "
                "file without it"
            )


def _tokens(source: str, fields: Mapping[str, Any]) -> tuple[str, ...]:
    found = fields.get("ggml.tokens")
    if not isinstance(found, list) or not found:
        raise _refused(source, "tokens", "nothing", "a list of tokens")
    tokens = tuple(token or f"[EMPTY_{index}]" for index, token in enumerate(found))
    if len(set(tokens)) < len(tokens):
        seen: dict[str, int] = {}
        for index, token in enumerate(tokens):
            if token in seen:
                raise _refused(
                    source, "tokens", f"{token!r} at {seen[token]} and at {index}", "each token once"
                )
            seen[token] = index
    return tokens


def _type_of(source: str, value: int) -> TokenType:
    try:
        return TokenType(value)
    except ValueError:
        raise _refused(source, "token_type", str(value), "0 to 6") from None


def _pair(source: str, merge: str) -> tuple[str, str]:
    first, space, second = merge[1:].partition(" ")
    if not (merge and space and second):
        raise _refused(source, "merges", repr(merge), "two tokens with a space between them")
    return merge[0] + first, second


def _token_id(source: str, key: str, value: int | None, count: int) -> int | None:
    if value is None:
        return None
    if not 0 <= value < count:
        raise _refused(source, key, str(value), f"0..{count - 1}, an id of its {count} tokens")
    return int(value)


def _end_ids(tokens: Sequence[str], ids: Mapping[str, int | None]) -> tuple[int, ...]:
    """llama.cpp's `special_eog_ids`: the stated ends, those it knows by text, and the marks of programs filled in."""
    of_text = {token: index for index, token in enumerate(tokens)}
    found = {ids[key] for key in ("eos_token_id", "eot_token_id", "eom_token_id", *_FILL_ENDS)}
    texts = [_ENDS, *(texts for key, texts in _FILL_ENDS.items() if ids[key] is None)]
    found |= {of_text.get(token) for token in " ".join(texts).split()}
    names = {tokens[index] for index in found if index is not None}
    # Two families in which a token of these texts ends a part of an answer only.
    calls = names & {"<|call|>", "<|calls|>"}
    if calls and names & {"<|return|>", "<|flush|>"}:
        found.discard(of_text.get("<|end|>"))
    if "<|tool_response>" in names:
        found.discard(of_text.get("</s>"))
    eos = ids["eos_token_id"]
    return tuple(
        sorted((index for index in found if index is not None), key=lambda index: (index != eos, index))
    )


def _flag(source: str, fields: Mapping[str, Any], key: str) -> bool | None:
    value = fields.get(f"ggml.{key}")
    if value is not None and not isinstance(value, bool):
        raise _refused(source, key, repr(value), "true or false")
    return value


def _refused(source: str, key: str, found: str, expected: str) -> CheckpointUnsupported:
    return CheckpointUnsupported(
        f"{source}: {_PREFIX}ggml.{key}: found {found}, expected {expected}; convert the checkpoint to GGUF again"
    )
