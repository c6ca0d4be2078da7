"""Vocabularies of SentencePiece: pieces with scores, from tokenizer.model or a GGUF file, proven on probe texts.

The tokenizer is built by transformers from the SentencePiece model's own message, and held to the rule itself: the
best score is merged first (byte pairs), or the sum of scores is the highest (unigram). Sources of the rules:
`src/bpe_model.cc` and `src/unigram_model.cc` of google/sentencepiece.
"""

import heapq
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from transformers.convert_slow_tokenizer import SpmConverter, import_protobuf

from specexport.errors import CheckpointUnsupported, reason_of
from specexport.tokenizer.gguf_vocabulary import BuiltTokenizer, GgufVocabulary, TokenType
from specexport.tokenizer.probes import PROBE_TEXTS, first_difference

_UNIGRAM, _PAIRS = 1, 2  # `TrainerSpec.ModelType`
_BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(256))
_SPACE = "\u2581"
_UNKNOWN_PENALTY = 10.0
_Pieces = Mapping[str, tuple[int, float]]  # id and score by text


def sentence_piece_tokenizer(
    source: str, directory: Path, config: Mapping[str, Any]
) -> tuple[Tokenizer, dict[str, str]]:
    """Return the tokenizer of a directory's tokenizer.model, and the tokens that the file names: `bos_token` and the
    like.

    `config`: its tokenizer_config.json. Raises `CheckpointUnsupported` for another kind of file.
    """
    proto = import_protobuf().ModelProto()
    try:
        proto.ParseFromString((directory / "tokenizer.model").read_bytes())
        read = len(proto.pieces) > 0 and proto.trainer_spec.model_type in (_UNIGRAM, _PAIRS)
        reason = f"found {len(proto.pieces)} pieces, model type {proto.trainer_spec.model_type}"
    except Exception as error:  # protobuf's DecodeError has no stable home
        read, reason = False, reason_of(error)
    if not read:
        raise CheckpointUnsupported(
            f"{source}: its tokenizer.model is not a SentencePiece model of byte pairs or unigram ({reason}), and "
            "nothing else says how text is cut; expected a tokenizer.json, save the tokenizer with one"
        )
    tokenizer = _built(source, proto, legacy=config.get("legacy") is not False)
    special = [piece.piece for piece in proto.pieces if piece.type in (TokenType.CONTROL, TokenType.UNKNOWN)]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    spec = proto.trainer_spec
    named = {
        "bos_token": (spec.bos_id, spec.bos_piece),
        "eos_token": (spec.eos_id, spec.eos_piece),
        "unk_token": (spec.unk_id, spec.unk_piece),
        "pad_token": (spec.pad_id, spec.pad_piece),
    }
    return tokenizer, {
        name: piece for name, (index, piece) in named.items() if index >= 0 and piece in special
    }


def score_pair_tokenizer(vocabulary: GgufVocabulary) -> BuiltTokenizer:
    """Return a GGUF vocabulary of `tokenizer.ggml.model: llama`. Raises `CheckpointUnsupported`."""
    source = vocabulary.source
    missing = _BYTES.difference(vocabulary.tokens)
    if missing:
        raise CheckpointUnsupported(
            f"{source}: a llama vocabulary without {len(missing)} of the 256 tokens for bytes (such as "
            f"{min(missing)}), expected all: text outside the vocabulary has no ids; convert the checkpoint again"
        )
    if vocabulary.remove_extra_whitespaces:
        raise CheckpointUnsupported(
            f"{source}: a llama vocabulary with tokenizer.ggml.remove_extra_whitespaces, which llama.cpp does not "
            "carry out for one; use the checkpoint's Hugging Face directory"
        )
    add_prefix = vocabulary.add_space_prefix is not False
    proto = _proto(vocabulary, _PAIRS, add_prefix=add_prefix)
    proto.trainer_spec.byte_fallback = True
    return BuiltTokenizer(_built(source, proto), add_bos=True)


def unigram_tokenizer(vocabulary: GgufVocabulary) -> BuiltTokenizer:
    """Return a GGUF vocabulary of `tokenizer.ggml.model: t5`. Raises `CheckpointUnsupported`."""
    if bytes_ := vocabulary.of_type(TokenType.BYTE):
        raise CheckpointUnsupported(
            f"{vocabulary.source}: a t5 vocabulary with tokens for bytes (such as {bytes_[0]}), which SentencePiece "
            "takes for text outside the vocabulary and llama.cpp does not; use the checkpoint's Hugging Face directory"
        )
    proto = _proto(vocabulary, _UNIGRAM, add_prefix=bool(vocabulary.add_space_prefix))
    proto.normalizer_spec.remove_extra_whitespaces = bool(vocabulary.remove_extra_whitespaces)
    proto.normalizer_spec.precompiled_charsmap = vocabulary.charsmap
    return BuiltTokenizer(_built(vocabulary.source, proto), add_eos=True)


def _proto(vocabulary: GgufVocabulary, kind: int, *, add_prefix: bool) -> Any:
    """Return the SentencePiece message that says the same; tokens found before the text is split take no part in it."""
    if vocabulary.scores is None:
        raise CheckpointUnsupported(
            f"{vocabulary.source}: a {vocabulary.model} vocabulary without tokenizer.ggml.scores, expected a score for "
            "each token; convert the checkpoint to GGUF again"
        )
    proto = import_protobuf().ModelProto()
    for token, kind_of, score in zip(vocabulary.tokens, vocabulary.types, vocabulary.scores, strict=True):
        apart = kind_of in (TokenType.USER_DEFINED, TokenType.UNDEFINED)
        proto.pieces.add(piece=token, score=score, type=int(TokenType.UNUSED if apart else kind_of))
    proto.trainer_spec.model_type = kind
    proto.trainer_spec.unk_id = vocabulary.unknown or 0
    proto.trainer_spec.unk_piece = vocabulary.text_of(vocabulary.unknown or 0)
    proto.normalizer_spec.add_dummy_prefix = add_prefix
    proto.normalizer_spec.remove_extra_whitespaces = False
    proto.normalizer_spec.escape_whitespaces = True
    return proto


def _built(source: str, proto: Any, *, legacy: bool = True) -> Tokenizer:
    """`legacy`: each text between added tokens begins with a space of its own, else only the first."""
    if proto.normalizer_spec.precompiled_charsmap:
        raise CheckpointUnsupported(
            f"{source}: its pieces come with a precompiled_charsmap, which tokenizers applies to whole clusters of "
            "characters: of two marks on one letter the second is lost; expected a directory with a tokenizer.json"
        )
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    pairs = proto.trainer_spec.model_type == _PAIRS
    vocabulary = {token: index for index, (token, _) in enumerate(pieces)} if pairs else pieces
    try:
        tokenizer: Tokenizer = SpmConverter.build_tokenizer_from_spm_proto(
            proto=proto, vocab=vocabulary, legacy=legacy
        )
    except Exception as error:  # tokenizers raises bare Exception
        raise CheckpointUnsupported(f"{source}: its pieces make no tokenizer: {reason_of(error)}") from None
    found_first = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED)
    outside = [piece.piece for piece in proto.pieces if piece.type in found_first]
    difference = first_difference(
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        _rule(proto),
        [text for text in PROBE_TEXTS if not any(token in text for token in outside)],
    )
    if difference is not None:
        raise CheckpointUnsupported(
            f"{source}: its pieces are split otherwise than SentencePiece splits them: {difference}; expected a "
            "directory with a tokenizer.json"
        )
    return tokenizer


def _rule(proto: Any) -> Callable[[str], list[int]]:
    """SentencePiece's own rule for a text without control tokens."""
    kinds = {
        kind: _pieces(proto, kind) for kind in (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.BYTE)
    }
    normal, whole, bytes_ = kinds.values()
    unknown, fallback = proto.trainer_spec.unk_id, proto.trainer_spec.byte_fallback
    split = _best_merges if proto.trainer_spec.model_type == _PAIRS else _best_sum
    longest_first = sorted(whole, key=len, reverse=True)
    pattern = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if whole else None

    def encode(text: str) -> list[int]:
        read = _normalised(text, proto.normalizer_spec)
        ids: list[int] = []
        for part in [read] if pattern is None else pattern.split(read):
            for piece in [part] if part in whole else split(part, normal):
                if piece in normal or piece in whole:
                    ids.append((normal if piece in normal else whole)[piece][0])
                elif fallback:
                    ids += [bytes_[f"<0x{byte:02X}>"][0] for byte in piece.encode()]
                elif not ids or ids[-1] != unknown:
                    ids.append(unknown)
        return ids

    return encode


def _pieces(proto: Any, kind: TokenType) -> dict[str, tuple[int, float]]:
    return {
        piece.piece: (index, piece.score) for index, piece in enumerate(proto.pieces) if piece.type == kind
    }


def _normalised(text: str, spec: Any) -> str:
    # SentencePiece takes a literal U+2581 at the end of a text for an extra space too; llama.cpp and this do not.
    if spec.remove_extra_whitespaces:
        text = re.sub(" +", " ", text).strip(" ")
    if spec.add_dummy_prefix and text:
        text = f" {text}"
    return text.replace(" ", _SPACE) if spec.escape_whitespaces else text


def _best_merges(text: str, pieces: _Pieces) -> list[str]:
    """Byte pairs: of all neighbours that join to a piece, the best score is joined first, the leftmost of equals."""
    parts: list[str | None] = list(text)
    after, before = [*range(1, len(text)), -1], list(range(-1, len(text) - 1))
    waiting: list[tuple[float, int, int, str]] = []

    def offer(left: int, right: int) -> None:
        if left < 0 or right < 0:
            return
        joined = f"{parts[left]}{parts[right]}"
        if joined in pieces:
            heapq.heappush(waiting, (-pieces[joined][1], left, right, joined))

    for index in range(1, len(text)):
        offer(index - 1, index)
    while waiting:
        _, left, right, joined = heapq.heappop(waiting)
        if parts[left] is None or parts[right] is None or f"{parts[left]}{parts[right]}" != joined:
            continue
        parts[left], parts[right], after[left] = joined, None, after[right]
        if after[right] >= 0:
            before[after[right]] = left
        offer(before[left], left)
        offer(left, after[left])
    return [part for part in parts if part is not None]


def _best_sum(text: str, pieces: _Pieces) -> list[str]:
    """Unigram: the split with the highest sum of scores; a character that is not a piece costs ten below the worst."""
    longest = max(map(len, pieces), default=1)
    unknown = min((score for _, score in pieces.values()), default=0.0) - _UNKNOWN_PENALTY
    best: list[tuple[float, int]] = [(0.0, 0)] + [(-math.inf, 0)] * len(text)
    for start in range(len(text)):
        for end in range(start + 1, min(len(text), start + longest) + 1):
            piece = text[start:end]
            if piece in pieces:
                score = best[start][0] + pieces[piece][1]
            elif end == start + 1:
                score = best[start][0] + unknown
            else:
                continue
            if score > best[end][0]:
                best[end] = (score, start)
    parts, end = [], len(text)
    while end:
        parts.append(text[best[end][1] : end])
        end = best[end][1]
    return parts[::-1]
