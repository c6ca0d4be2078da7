"""Tiny checkpoints of each family of tokenizers, with ids that do not come from specexport.

Those of SentencePiece come from its own library (sentencepiece.json); the others from a tokenizer.json written by hand
and read by tokenizers alone.
"""

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers.convert_slow_tokenizer import import_protobuf

from tests.specexport.tokenizer.gguf_vocabularies import (
    CORPUS,
    TEXTS,
    byte_level_model,
    tiny_llama,
    write_gguf,
)

_KNOWN = json.loads((Path(__file__).parent / "sentencepiece.json").read_text(encoding="utf-8"))
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
    r"|\s+"
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
Ids = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class Case:
    """`write(place)` makes the checkpoint and returns the recipe's `source`; `ids` is the independent tokenizer."""

    name: str
    write: Callable[[Path], Path]
    ids: Ids
    texts: tuple[str, ...] = tuple(TEXTS)


def _directory(
    tokenizer: Tokenizer | None, config: dict[str, Any], rows: int, files: dict[str, bytes]
) -> Callable[[Path], Path]:
    def write(place: Path) -> Path:
        tiny_llama(rows).save_pretrained(place)
        if tokenizer is not None:
            tokenizer.save(str(place / "tokenizer.json"))
        (place / "tokenizer_config.json").write_text(json.dumps(config))
        for name, content in files.items():
            (place / name).write_bytes(content)
        return place

    return write


def _own_file(name: str, tokenizer: Tokenizer, **config: Any) -> Case:
    return Case(
        f"directory-{name}",
        _directory(tokenizer, config, tokenizer.get_vocab_size(), {}),
        lambda text: tokenizer.encode(text).ids,
    )


def byte_level(*parts: pre_tokenizers.PreTokenizer, bos: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(byte_level_model())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(parts))
    tokenizer.decoder = decoders.ByteLevel()
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
        )
        tokenizer.model.ignore_merges = True
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in _SPECIAL])
    return tokenizer


_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_BYTE_LEVEL: dict[str, tuple[Tokenizer, str]] = {
    "gpt-2": (byte_level(_GPT2), "Qwen2Tokenizer"),
    "smollm": (byte_level(pre_tokenizers.Digits(individual_digits=True), _GPT2), "GPT2Tokenizer"),
    "llama-bpe": (
        byte_level(pre_tokenizers.Split(Regex(_LLAMA3), "isolated"), _BYTES, bos=True),
        "LlamaTokenizerFast",
    ),
}


def _byte_level_gguf(name: str, tokenizer: Tokenizer) -> Case:
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    types = [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(tokens) - 3)

    def write(place: Path) -> Path:
        return write_gguf(
            place / "tiny.gguf",
            tokens,
            types,
            weights=tiny_llama(len(tokens)),
            model="gpt2",
            pre=name,
            merges=[" ".join(merge) for merge in model["merges"]],
            bos_token_id=1,
            eos_token_id=2,
        )

    return Case(f"gguf-{name}", write, lambda text: tokenizer.encode(text).ids)


def _known(name: str) -> dict[str, list[int]]:
    return {text: [int(index) for index in ids.split()] for text, ids in _KNOWN[name]["ids"]}


def _known_texts(name: str) -> tuple[str, ...]:
    """The recorded texts without tokens that are found before a text is split, and without U+2581 at their end."""
    return tuple(
        text
        for text in _known(name)
        if not any(token in text for token in ("<s>", "</s>", "<unk>")) and not text.endswith("\u2581")
    )


def _pieces(name: str) -> Any:
    proto = import_protobuf().ModelProto()
    proto.ParseFromString(base64.b64decode(_KNOWN[name]["model"]))
    return proto


def _model_file(name: str) -> Case:
    files = {"tokenizer.model": base64.b64decode(_KNOWN[name]["model"])}
    config = {
        "tokenizer_class": "LlamaTokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    return Case(
        f"directory-model-{name}",
        _directory(None, config, len(_pieces(name).pieces), files),
        _known(name).__getitem__,
        _known_texts(name),
    )


def _pieces_gguf(name: str, kind: str, *, bos: bool = False, eos: bool = False) -> Case:
    proto, known = _pieces(name), _known(name)
    user = gguf.TokenType.USER_DEFINED

    def write(place: Path) -> Path:
        spec = proto.normalizer_spec
        return write_gguf(
            place / "tiny.gguf",
            # the converter writes tokens that users defined as they stand in a text
            [piece.piece.replace("▁", " ") if piece.type == user else piece.piece for piece in proto.pieces],
            [piece.type for piece in proto.pieces],
            weights=tiny_llama(len(proto.pieces)),
            model=kind,
            pre="default",
            scores=[piece.score for piece in proto.pieces],
            unknown_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            add_space_prefix=bool(spec.add_dummy_prefix),
            add_bos_token=bos,
            add_eos_token=eos,
            remove_extra_whitespaces=bool(spec.remove_extra_whitespaces),
        )

    def ids(text: str) -> list[int]:
        return [*([1] if bos else []), *known[text], *([2] if eos else [])]

    ends = f"{'-bos' if bos else ''}{'-eos' if eos else ''}"
    return Case(f"gguf-{kind}-{name}{ends}", write, ids, _known_texts(name))


def _llama2() -> Tokenizer:
    """As Llama 2's tokenizer.json: a space is prepended to the text, spaces are replaced, bytes are the fallback."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [*"▁abcdefghijklmnopqrstuvwxyz.,0123456789\n", "th", "the", "▁the", "▁a", "▁q", "on", "▁▁"]
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("▁", "a"), ("▁", "q"), ("o", "n"), ("▁", "▁")]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in tokens[:3]])
    return tokenizer


def _unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def word_pieces(*, lowercase: bool, strip_accents: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=150, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


CASES: tuple[Case, ...] = (
    *(_own_file(name, made, tokenizer_class=kind) for name, (made, kind) in _BYTE_LEVEL.items()),
    *(_byte_level_gguf(name, made) for name, (made, _) in _BYTE_LEVEL.items()),
    _own_file("llama-2", _llama2(), tokenizer_class="LlamaTokenizer", legacy=False, unk_token="<unk>"),
    _model_file("pairs"),
    _model_file("pairs_users"),
    _pieces_gguf("pairs", "llama"),
    _pieces_gguf("pairs", "llama", bos=True),
    _pieces_gguf("pairs_users", "llama"),
    _own_file("unigram", _unigram(), tokenizer_class="T5Tokenizer", unk_token="<unk>"),
    _model_file("unigram"),
    _model_file("unigram_bytes"),
    _pieces_gguf("unigram", "t5"),
    _pieces_gguf("unigram", "t5", eos=True),
    _pieces_gguf("unigram", "t5", bos=True, eos=True),
    *(
        _own_file(
            f"words-{lowercase}-{strip}",
            word_pieces(lowercase=lowercase, strip_accents=strip),
            tokenizer_class="BertTokenizer",
            do_lower_case=not lowercase,
            unk_token="[UNK]",
        )
        for lowercase, strip in ((True, True), (True, False), (False, False))
    ),
)
# A bundle copies the tokenizer that `load_checkpoint` gives; two whole builds, the shapes that went wrong, prove that.
BUILT = ("gguf-smollm", "directory-llama-2")
