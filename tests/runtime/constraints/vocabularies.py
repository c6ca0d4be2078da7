"""Tokenizers of the kinds that bundles have, small enough to be read, and random models of token choices over them."""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from specruntime.constraints import Compiler
from specruntime.manifest.schema import TokenizerSpec
from specruntime.text.codec import TextCodec

TEXTS = [
    '{"name": "Ada", "age": 36, "tags": ["a", "b"], "nested": {"on": true, "off": false, "none": null}}',
    "the quick brown fox jumps over the lazy dog; naïve café, 日本語, \U0001f600 and more words and more words",
    "0 1 2 3 4 5 6 7 8 9 10 11 12 13 99 100 -1.5e10 yes no maybe",
]
KINDS = ("byte-level", "sentencepiece")
END = "</s>"
PADDING = 13  # rows of the model's vocabulary without a token


def tokenizer_of(kind: str) -> Tokenizer:
    """A trained tokenizer with special and other added tokens."""
    if kind == "byte-level":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<s>", END]
        )
    elif kind == "sentencepiece":
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
        tokenizer.decoder = decoders.Sequence(
            [
                decoders.Replace("\u2581", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
        bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=["<unk>", "<s>", END, *bytes_])
    else:
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()]
        )
        tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
        tokenizer.train_from_iterator(
            TEXTS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=["<unk>", "<s>", END])
        )
        return tokenizer
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens([AddedToken("[[added]]", special=False)])
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    return tokenizer


def codec_of(kind: str, root: Path) -> TextCodec:
    tokenizer_of(kind).save(str(root / "tokenizer.json"))
    return TextCodec.open(root, TokenizerSpec(file="tokenizer.json", sha256="0" * 64))


def compiler_of(codec: TextCodec) -> Compiler:
    """For a model with more rows than the tokenizer has tokens, which ends with `</s>` or `<|im_end|>`."""
    ends = (end_of(codec), codec.encode_plain("<|im_end|>")[-1])
    return Compiler(lambda: codec, codec.size + PADDING, ends)


def end_of(codec: TextCodec) -> int:
    (end,) = (token for token in range(codec.size) if codec.token_text(token) == END)
    return end
