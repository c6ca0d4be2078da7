"""The text of an answer is what decoding it together with its prompt adds to the prompt, in every tokenizer family."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from specruntime.text.codec import TextCodec
from tests.runtime.text.test_codec import (
    byte_level,
    in_runs,
    open_codec,
    sentencepiece_like,
    with_special_tokens,
)

MARK = "\u2581"
ALPHABET = "ab, \n\u00e9\u4f60\U0001f600"


def byte_level_with_words() -> Tokenizer:
    """Byte-level BPE with a token of a space and a letter, one of a space and half a character, and a marker."""
    symbol = bytes_to_unicode()
    vocabulary = {symbol[byte]: byte for byte in range(256)}
    merges = [(symbol[0x20], "a"), (symbol[0x20], symbol[0xC3]), ("a", "b")]
    for pair in merges:
        vocabulary["".join(pair)] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return with_special_tokens(tokenizer)


def sentencepiece_without_strip() -> Tokenizer:
    """As Gemma: spaces are marks, nothing is put before a text."""
    tokenizer = sentencepiece_like()
    tokenizer.normalizer = normalizers.Replace(" ", MARK)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def metaspace_unigram() -> Tokenizer:
    """As T5 and ALBERT: the first mark of a text is not one of its spaces."""
    pieces = ["<unk>", MARK, MARK + "a", MARK + "ab", *"ab,\n\u00e9\u4f60\U0001f600"]
    tokenizer = Tokenizer(models.Unigram([(piece, -float(i)) for i, piece in enumerate(pieces)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return with_special_tokens(tokenizer)


def wordpiece() -> Tokenizer:
    """As BERT: words are joined with spaces, their later parts begin with ##."""
    pieces = ["[UNK]", "a", "b", "ab", "##a", "##b", "##\u00e9", "\u00e9", ",", "\u4f60", "\U0001f600"]
    tokenizer = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    return with_special_tokens(tokenizer)


FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    "bytes": byte_level,
    "byte-level BPE": byte_level_with_words,
    "SentencePiece BPE": sentencepiece_like,
    "SentencePiece BPE without strip": sentencepiece_without_strip,
    "Metaspace unigram": metaspace_unigram,
    "WordPiece": wordpiece,
}
Opened = tuple[Tokenizer, TextCodec]


@pytest.fixture(scope="module", params=list(FAMILIES.values()), ids=list(FAMILIES))
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    tokenizer: Tokenizer = request.param()
    return tokenizer, open_codec(tmp_path_factory.mktemp("family"), tokenizer, template=None)


def added(tokenizer: Tokenizer, prompt: list[int], answer: list[int]) -> str:
    """By `tokenizers` alone: the text of both after the longest beginning of it that is a text of the prompt's tokens.

    That is the prompt's text, unless the prompt ends inside a character: then it is the text before that one.
    """
    whole = tokenizer.decode(prompt + answer)
    beginnings = (tokenizer.decode(prompt[:count]) for count in range(len(prompt), -1, -1))
    return whole[len(next(text for text in beginnings if whole.startswith(text))) :]


def id_of(tokenizer: Tokenizer, name: str) -> int:
    found = tokenizer.token_to_id(name)
    assert found is not None
    return found


def streamed(codec: TextCodec, prompt: list[int], runs: list[list[int]]) -> str:
    stream = codec.stream(prompt)
    return "".join(stream.push(run) for run in runs) + stream.flush()


@given(
    text=st.text(st.sampled_from(ALPHABET), max_size=30),
    cut=st.integers(0, 100),
    marks=st.lists(st.integers(0, 100), max_size=3),
    cuts=st.lists(st.integers(0, 100), max_size=4),
)
def test_an_answer_adds_to_its_prompt_what_decoding_both_does(
    opened: Opened, text: str, cut: int, marks: list[int], cuts: list[int]
) -> None:
    """Split anywhere, inside a character too, and with special tokens anywhere."""
    tokenizer, codec = opened
    ids = list(tokenizer.encode(text, add_special_tokens=False).ids)
    for mark in marks:
        ids.insert(mark % (len(ids) + 1), id_of(tokenizer, "<|im_start|>"))
    split = cut % (len(ids) + 1)
    prompt, answer = ids[:split], ids[split:]
    assert streamed(codec, prompt, in_runs(answer, cuts)) == added(tokenizer, prompt, answer)


@pytest.mark.parametrize("make", [sentencepiece_like, metaspace_unigram], ids=["Strip", "Metaspace"])
def test_the_first_word_keeps_its_space_after_a_text_and_has_none_at_the_beginning(
    tmp_path: Path, make: Callable[[], Tokenizer]
) -> None:
    tokenizer = make()
    codec = open_codec(tmp_path, tokenizer, template=None)
    start = id_of(tokenizer, "<|im_start|>")
    word = [id_of(tokenizer, token) for token in (MARK, "a")]
    (letter,) = [id_of(tokenizer, "b")]
    assert streamed(codec, [letter], [word]) == " a"
    assert streamed(codec, [letter, start], [word]) == " a"
    assert streamed(codec, [letter, *[start] * 100], [word]) == " a"
    assert streamed(codec, [], [word]) == "a" == streamed(codec, [start], [word])


def test_a_character_that_the_prompt_begins_belongs_to_the_answer(tmp_path: Path) -> None:
    for number, make in enumerate((byte_level, sentencepiece_like)):
        (tmp_path / str(number)).mkdir()
        codec = open_codec(tmp_path / str(number), make(), template=None)
        ids = codec.encode("a\u4f60b")
        (inside,) = (n for n, token in enumerate(ids) if codec.token_bytes(token) == b"\xbd")
        assert streamed(codec, ids[:inside], [ids[inside:]]) == "\u4f60b"
        assert "\u4f60" not in streamed(codec, ids[:inside], [ids[inside : inside + 1]])


def test_the_tokens_of_a_long_prompt_are_not_all_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = open_codec(tmp_path, byte_level(), template=None)
    longest, decode = 0, TextCodec.decode

    def watched(self: TextCodec, ids: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return decode(self, ids)

    monkeypatch.setattr(TextCodec, "decode", watched)
    assert streamed(codec, codec.encode("ab" * 4000), [codec.encode("c")]) == "c"
    assert longest <= 20


class TestTokenBytes:
    def test_of_byte_level_vocabularies_are_those_of_the_table(self, tmp_path: Path) -> None:
        codec, names = open_codec(tmp_path, byte_level_with_words(), template=None), byte_level_with_words()
        table = {symbol: byte for byte, symbol in bytes_to_unicode().items()}
        for token in range(259):
            name = names.id_to_token(token)
            assert name and codec.token_bytes(token) == bytes(table[symbol] for symbol in name)
        assert codec.token_bytes(257) == b" \xc3" and codec.token_text(257) == "\\x20\\xc3"
        assert codec.token_text(256) == " a"

    def test_of_byte_fallback_are_the_byte_that_is_named(self, tmp_path: Path) -> None:
        tokenizer = sentencepiece_like()
        codec = open_codec(tmp_path, tokenizer, template=None)
        for byte in range(256):
            token = id_of(tokenizer, f"<0x{byte:02X}>")
            assert codec.token_bytes(token) == bytes([byte])
        assert codec.token_text(id_of(tokenizer, "<0xE2>")) == "\\xe2"

    @pytest.mark.parametrize(
        ("make", "token", "text"),
        [
            (sentencepiece_like, MARK, " "),
            (sentencepiece_without_strip, MARK, " "),
            (metaspace_unigram, MARK + "ab", " ab"),
            (metaspace_unigram, "\u4f60", "\u4f60"),
            (wordpiece, "ab", " ab"),
            (wordpiece, "##b", "b"),
            (wordpiece, ",", ","),
            (byte_level_with_words, "<think>", "<think>"),
        ],
    )
    def test_keep_the_space_of_a_word(
        self, tmp_path: Path, make: Callable[[], Tokenizer], token: str, text: str
    ) -> None:
        tokenizer = make()
        codec = open_codec(tmp_path, tokenizer, template=None)
        index = id_of(tokenizer, token)
        assert codec.token_bytes(index) == text.encode() and codec.token_text(index) == text

    def test_a_special_token_has_a_name_and_no_bytes(self, opened: Opened) -> None:
        tokenizer, codec = opened
        special = id_of(tokenizer, "</s>")
        assert codec.token_bytes(special) is None and codec.token_text(special) == "</s>"
        assert codec.token_bytes(5000) is None and codec.token_text(5000) == "token_id:5000"

    @given(text=st.text(st.sampled_from(ALPHABET), max_size=20))
    def test_joined_are_the_bytes_of_the_text(self, opened: Opened, text: str) -> None:
        tokenizer, codec = opened
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        joined = b"".join(codec.token_bytes(token) or b"" for token in ids)
        # A decoder may drop the space that begins a text.
        assert joined.decode().lstrip(" ") == tokenizer.decode(ids).lstrip(" ")
