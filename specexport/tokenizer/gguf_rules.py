r"""The splitting rules that `tokenizer.ggml.pre` names, as data: how text is cut before byte pairs are merged.

Each rule is the chain of the tokenizer.json that the name was made for, where llama.cpp quotes it or it is published
with the model; else the expressions that llama.cpp itself applies, one after the other, each to the pieces of the one
before. Source: `src/llama-vocab.cpp` of llama.cpp (`llama_vocab::impl::load`, `llm_tokenizer_bpe`).

A GGUF file states no normaliser, and llama.cpp applies none, so neither does this: text that a Qwen tokenizer.json
composes first (NFC) is read as it is.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

Step = (
    str | Callable[[], PreTokenizer]
)  # an expression whose matches become pieces, or another of tokenizers' parts


@dataclass(frozen=True)
class SplitRule:
    """`ignore_merges`: a piece that is a token is taken whole. `add_bos`: unless the file says otherwise."""

    steps: tuple[Step, ...]
    ignore_merges: bool = False
    add_bos: bool = False


def isolate(pattern: str) -> PreTokenizer:
    """Cut out each match; what lies between two matches is a piece too."""
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def pre_tokenizer(rule: SplitRule) -> PreTokenizer:
    """Return the rule in tokenizers' own parts, ending in the alphabet of bytes."""
    parts = [isolate(step) if isinstance(step, str) else step() for step in rule.steps]
    if _GPT2 not in rule.steps:
        parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return parts[0] if len(parts) == 1 else pre_tokenizers.Sequence(parts)


def _code_points(ranges: str) -> str:
    """Return the inside of a character class, from hexadecimal code points and ranges of them."""
    return re.sub(r"[0-9A-F]+", lambda found: rf"\x{{{found[0]}}}", ranges).replace(" ", "")


_DIGITS = partial(pre_tokenizers.Digits, individual_digits=True)
_DIGIT_RUNS = partial(pre_tokenizers.Digits, individual_digits=False)
_PUNCTUATION_RUNS = partial(pre_tokenizers.Punctuation, behavior="contiguous")
_GPT2 = partial(pre_tokenizers.ByteLevel, add_prefix_space=False, use_regex=True)

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_CJK_RUNS = f"[{_code_points('4E00-9FA5 3040-309F 30A0-30FF')}]+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"
_LATIN_AFTER_SYMBOL = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""


def _words(numbers: str, spaces: str = _SPACES, symbols: str = _SYMBOLS) -> str:
    """Return the family that cl100k began: contractions, words with one character before them, numbers, symbols,
    spaces.
    """
    return rf"{_CONTRACTIONS}|{_BEFORE_WORD}\p{{L}}+|{numbers}|{symbols}|{spaces}"


def _cased(numbers: str, contractions: str) -> str:
    """Return the family that o200k began: words end where a capital follows a small letter."""
    return (
        rf"{_BEFORE_WORD}{_UPPER}*{_LOWER}+{contractions}|{_BEFORE_WORD}{_UPPER}+{_LOWER}*{contractions}|{numbers}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


_FEW_DIGITS = r"\p{N}{1,3}"
_LLAMA3 = _words(_FEW_DIGITS)
_QWEN2 = _words(r"\p{N}")
_TEKKEN = _cased(r"\p{N}", "")
_GPT4O = _cased(_FEW_DIGITS, f"{_CONTRACTIONS}?")
_QWEN35 = (
    rf"{_CONTRACTIONS}|{_BEFORE_WORD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_DEEPSEEK_WORDS = rf"{_LATIN_AFTER_SYMBOL}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+"
_DEEPSEEK3 = rf"{_DEEPSEEK_WORDS}[\r\n]*|{_SPACES}"
_SPARK = rf"{_DEEPSEEK_WORDS}|[\r\n]|\s+(?!\S)|\s+"
_YOUTU_ASIAN = "|".join(
    f"[{_code_points(ranges)}]+"
    for ranges in (
        "AC00-D7A3 3131-318E",
        "FF01 2026 201C 201D 2018 2019 2014 FF1A FF1B FF0C 3001-303F FE30-FE4F",
        "3105-312F",
        "4E00-9FA5 3040-309F 30A0-30FF",
    )
)
_JAIS2_SPACES = (
    r"\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)"
    r"|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
)
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_EXAONE_MOE = (
    rf"{_CONTRACTIONS}|{_BEFORE_WORD}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"
# The letters with case that its file lists, as ranges of code points: some of them look like others.
_DEEPSEEK_LETTERS = (
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376-377 37B-37D 37F 386 "
    "388-38A 38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA "
    "1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 "
    "1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC "
    "1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 "
    "213C-213F 2145-2149 214E 2183-2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2-2CF3 A640-A66D A680-A69B "
    "A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F "
    "104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)
_DEEPSEEK_ASIAN = f"[{_code_points('800-4E00 4E00-9FA5 AC00-D7FF')}]+"

_DEFAULT = SplitRule((r"[\p{P}\$\+<=>\^~\|]+", _WORDS_GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))
_RULES: tuple[tuple[str, SplitRule], ...] = (
    ("default", _DEFAULT),
    (
        "gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 mpt olmo jais trillion granite-docling",
        SplitRule((_GPT2,)),
    ),
    (
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
        SplitRule((_DIGITS, _GPT2)),
    ),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2",
        SplitRule((_LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    ("dbrx smaug-bpe glm4 chatglm-bpe", SplitRule((_LLAMA3,))),
    (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
        SplitRule((_QWEN2,)),
    ),
    ("qwen35", SplitRule((_QWEN35,))),
    ("tekken", SplitRule((_TEKKEN,), ignore_merges=True, add_bos=True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", SplitRule((_GPT4O,))),
    ("tiny_aya cohere2moe", SplitRule((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O))),
    ("deepseek-v3 hunyuan-dense hy_v4 joyai-llm", SplitRule((_FEW_DIGITS, _CJK_RUNS, _DEEPSEEK3))),
    (
        "deepseek-llm",
        SplitRule(
            (
                "[\r\n]",
                rf"\s?[{_code_points(_DEEPSEEK_LETTERS)}]+",
                rf"\s?[!-/:-~{_code_points('FF01-FF0F FF1A-FF5E 2018-201F 3000-3002')}]+",
                r"\s+$",
                _DEEPSEEK_ASIAN,
                r"\p{N}+",
            )
        ),
    ),
    ("spark2_5", SplitRule((_FEW_DIGITS, _CJK_RUNS, _SPARK, r"\p{N}"))),
    ("youtu", SplitRule((_YOUTU_ASIAN, _cased(r"\p{N}", f"{_CONTRACTIONS}?")), ignore_merges=True)),
    (
        "chameleon",
        SplitRule(
            (
                "<sentinel:[0-9]+>",
                "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                r"([\t\n]|    |  )",
                _DIGITS,
                r"[\p{P}!-/:-@\[-`{-~]",
                _GPT2,
            ),
            add_bos=True,
        ),
    ),
    ("deepseek-coder", SplitRule(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_ASIAN, _DIGITS))),
    ("falcon", SplitRule((_PUNCTUATION_RUNS, _GPT2, _DIGIT_RUNS, "[0-9][0-9][0-9]"))),
    ("jais-2", SplitRule((_words(_FEW_DIGITS, _JAIS2_SPACES),))),
    ("poro-chat bloom gpt3-finnish", SplitRule((_BLOOM,))),
    ("viking", SplitRule((_BLOOM, r"\p{N}"))),
    ("superbpe", SplitRule((r"\p{N}+", r"(?=(\d{3})+(?!\d))"))),
    ("bailingmoe bailingmoe2 llada-moe", SplitRule((_BAILING,))),
    ("seed-coder", SplitRule((_words(r"\p{N}{1}", symbols=r" ?[^\s\p{L}\p{N}\r\n]+"),))),
    ("ufakzeka", SplitRule((rf"{_BEFORE_WORD}\p{{L}}+|\p{{N}}|{_SYMBOLS}|{_SPACES}",))),
    ("laguna", SplitRule((r"[^\n]+|[\n]+", _QWEN2))),
    ("exaone-moe", SplitRule((_EXAONE_MOE,))),
    ("minicpm5", SplitRule((_FEW_DIGITS, _words(r"\p{N}+")), ignore_merges=True)),
)
SPLIT_RULES: dict[str, SplitRule] = {name: rule for names, rule in _RULES for name in names.split()}

_CODE = "its rule is code in llama.cpp that no published expression states"
_CHARACTERS = "it merges characters, not bytes"
_ENCODER = "it belongs to an encoder, which does not continue text"
_REFUSED: tuple[tuple[str, str], ...] = (
    ("kimi-k2 afmoe", _CODE),
    ("gemma4 sarvam-moe whitespace", _CHARACTERS),
    (
        "jina-es jina-de jina-v2-es jina-v2-de jina-v2-code jina-v1-en jina-v5-nano roberta-bpe modern-bert",
        _ENCODER,
    ),
    ("granite-embed-multi-97m granite-embed-multi-311m", _ENCODER),
)
REFUSED_RULES: dict[str, str] = {name: reason for names, reason in _REFUSED for name in names.split()}
