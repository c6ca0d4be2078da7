"""Text in and out equals transformers', and a stream of pieces equals the text decoded at once."""

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from tokenizers.normalizers import Prepend, Replace
from tokenizers.normalizers import Sequence as Normalizers

from specruntime.errors import BackendMissing, BundleInvalid, InvalidArgument
from specruntime.manifest.schema import TokenizerSpec
from specruntime.text.codec import INCOMPLETE, TextCodec

SPEC = TokenizerSpec(
    file="tokenizer.json",
    sha256="0" * 64,
    chat_template="chat_template.jinja",
    bos_token="<s>",
    eos_token="</s>",
)
# Has what real templates use: loop controls, a guard that raises, bos and eos, a namespace, JSON, the prompt opener.
TEMPLATE = """{{ bos_token }}
{%- set seen = namespace(system=false) %}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {%- if not loop.first %}{{ raise_exception('system comes first') }}{% endif %}
        {%- set seen.system = true %}
    {%- endif %}
    {%- if message['role'] == 'skip' %}{% continue %}{% endif %}
    {%- if message.tools is defined %}{{ message.tools | tojson }}{% endif %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""


def with_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<s>", "</s>", "<|im_start|>")])
    return tokenizer


def byte_level() -> Tokenizer:
    """One token per byte, as GPT-2 and SmolLM2 fall back to: a character is 1 to 4 tokens."""
    vocabulary = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return with_special_tokens(tokenizer)


def sentencepiece_like() -> Tokenizer:
    """Words joined by a space mark, unknown characters as `<0x..>` bytes, as Llama-2: decoding depends on context."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"abcdefgh ijk"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={p: i for i, p in enumerate(pieces)}, merges=[], unk_token="<unk>", byte_fallback=True
        )
    )
    tokenizer.normalizer = Normalizers([Prepend("\u2581"), Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return with_special_tokens(tokenizer)


def open_codec(root: Path, tokenizer: Tokenizer, template: str | None = TEMPLATE) -> TextCodec:
    tokenizer.save(str(root / "tokenizer.json"))
    if template is None:
        return TextCodec.open(root, SPEC.model_copy(update={"chat_template": None}))
    (root / "chat_template.jinja").write_text(template)
    return TextCodec.open(root, SPEC)


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return open_codec(tmp_path_factory.mktemp("bytes"), byte_level())


@pytest.fixture(scope="module")
def word_codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return open_codec(tmp_path_factory.mktemp("words"), sentencepiece_like())


def streamed(codec: TextCodec, runs: list[list[int]]) -> list[str]:
    stream = codec.stream()
    return [*(stream.push(run) for run in runs), stream.flush()]


def in_runs(ids: list[int], cuts: list[int]) -> list[list[int]]:
    bounds = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    return [ids[start:end] for start, end in pairwise(bounds)]


class TestStream:
    @given(text=st.text(), cuts=st.lists(st.integers(0, 1000)))
    def test_pieces_join_to_the_text_however_tokens_arrive(
        self, codec: TextCodec, text: str, cuts: list[int]
    ) -> None:
        assert "".join(streamed(codec, in_runs(codec.encode(text), cuts))) == text

    @given(text=st.text(st.sampled_from("ab \u00e9\u4f60\U0001f600")), cuts=st.lists(st.integers(0, 1000)))
    def test_pieces_join_where_decoding_depends_on_the_words_before(
        self, word_codec: TextCodec, text: str, cuts: list[int]
    ) -> None:
        ids = word_codec.encode(text)
        assert "".join(streamed(word_codec, in_runs(ids, cuts))) == word_codec.decode(ids)

    @given(text=st.text(st.characters(exclude_characters=INCOMPLETE, exclude_categories=["Cs"])))
    def test_no_piece_holds_half_a_character(self, codec: TextCodec, text: str) -> None:
        pieces = streamed(codec, [[token] for token in codec.encode(text)])
        assert not any(INCOMPLETE in piece for piece in pieces)

    def test_each_character_is_given_as_soon_as_its_bytes_are_there(self, codec: TextCodec) -> None:
        pieces = streamed(codec, [[token] for token in codec.encode("a\u00e9\u4f60")])
        assert pieces == ["a", "", "\u00e9", "", "", "\u4f60", ""]

    def test_bytes_that_never_become_a_character_come_with_the_flush(self, codec: TextCodec) -> None:
        first_of_three = codec.encode("\u4f60")[:1]
        assert streamed(codec, [codec.encode("a"), first_of_three]) == ["a", "", INCOMPLETE]

    def test_broken_bytes_in_the_middle_do_not_stop_the_stream(self, codec: TextCodec) -> None:
        ids = codec.encode("\u4f60")[:1] + codec.encode("bc")
        assert streamed(codec, [[token] for token in ids]) == ["", INCOMPLETE + "b", "c", ""]

    def test_text_before_half_a_character_does_not_wait_for_it(self, tmp_path: Path) -> None:
        """A token of a space and the first half of a character, as SmolLM2 has them."""
        ((symbols, _),) = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(" \u00e9")
        space, first, second = list(symbols)
        vocabulary = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary | {space + first: 256}, merges=[(space, first)]))
        tokenizer.decoder = decoders.ByteLevel()
        codec = open_codec(tmp_path, tokenizer, template=None)
        rest = vocabulary[second]
        assert streamed(codec, [[256], [rest], [256], [256], [rest]]) == [
            " ", "\u00e9", " ", INCOMPLETE + " ", "\u00e9", "",
        ]  # fmt: skip
        assert streamed(codec, [[256]]) == [" ", INCOMPLETE]

    @pytest.mark.parametrize("name", ["codec", "word_codec"])
    @pytest.mark.parametrize("text", ["\u4f60", "\U0001f600"])
    def test_a_run_of_broken_bytes_is_shown_and_not_decoded_again(
        self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, name: str, text: str
    ) -> None:
        codec: TextCodec = request.getfixturevalue(name)
        broken = next(token for token in codec.encode(text) if INCOMPLETE in codec.decode([token]))
        longest = 0
        decode = TextCodec.decode

        def watched(self: TextCodec, ids: list[int]) -> str:
            nonlocal longest
            longest = max(longest, len(ids))
            return decode(self, ids)

        monkeypatch.setattr(TextCodec, "decode", watched)
        stream = codec.stream()
        shown = [stream.push([broken]) for _ in range(300)]
        assert longest <= 25
        assert "".join(shown) == INCOMPLETE * 297 and shown[100] == INCOMPLETE
        assert stream.flush() == INCOMPLETE * 3

    @given(tokens=st.lists(st.integers(0, 255), max_size=60))
    def test_any_bytes_stream_to_what_they_decode_to(self, codec: TextCodec, tokens: list[int]) -> None:
        pieces = streamed(codec, [[token] for token in tokens])
        assert "".join(pieces) == codec.decode(tokens)

    def test_after_broken_bytes_the_text_goes_on(self, word_codec: TextCodec) -> None:
        broken = word_codec.encode("\u4f60")[1:2] * 40
        ids = [*word_codec.encode("b"), *broken, *word_codec.encode("bad")]
        assert "".join(streamed(word_codec, [[token] for token in ids])) == "b" + INCOMPLETE * 40 + " bad"

    def test_a_character_before_a_broken_byte_is_sent_and_stays(self, word_codec: TextCodec) -> None:
        """tokenizers gives up the whole run of byte tokens, and a stream cannot take back what it sent."""
        byte = {value: 1 + value for value in range(256)}
        assert word_codec.decode([byte[0x51], byte[0xE2]]) == INCOMPLETE * 2
        assert "".join(streamed(word_codec, [[byte[0x51]], [byte[0xE2]]])) == "Q" + INCOMPLETE

    def test_special_tokens_are_silent(self, codec: TextCodec) -> None:
        ids = [*codec.encode("a"), *codec.encode("</s>"), *codec.encode("b")]
        assert len(ids) == 3
        assert streamed(codec, [[token] for token in ids]) == ["a", "", "b", ""]


class TestEncode:
    def test_no_special_token_is_added_unless_the_file_says_so(
        self, codec: TextCodec, tmp_path: Path
    ) -> None:
        tokenizer = byte_level()
        start = tokenizer.token_to_id("<s>")
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", start)]
        )
        assert open_codec(tmp_path, tokenizer).encode("ab") == [start, *codec.encode("ab")]

    def test_a_chat_never_starts_twice(self, codec: TextCodec, tmp_path: Path) -> None:
        tokenizer = byte_level()
        start = tokenizer.token_to_id("<s>")
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", start)]
        )
        messages = [{"role": "user", "content": "hi"}]
        assert open_codec(tmp_path, tokenizer).chat(messages) == codec.chat(messages)


CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one turn": [{"role": "user", "content": "hello "}],
    "system and turns": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "1 < 2 & \u00e9?"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "\U0001f600"},
    ],
    "continue and JSON": [
        {"role": "skip", "content": "unseen"},
        {"role": "user", "content": "x", "tools": [{"name": "<f>", "text": "\u00e9"}]},
    ],
}


@pytest.mark.parametrize("open_answer", [True, False])
@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_a_chat_has_the_tokens_transformers_gives_it(
    codec: TextCodec, messages: list[dict[str, Any]], open_answer: bool
) -> None:
    from transformers import PreTrainedTokenizerFast

    reference = PreTrainedTokenizerFast(
        tokenizer_object=byte_level(), bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE
    )
    expected = reference.apply_chat_template(messages, add_generation_prompt=open_answer, return_dict=False)
    assert codec.chat(messages, add_generation_prompt=open_answer) == expected


class TestRefusals:
    @pytest.mark.parametrize("ids", [[-1], [2**32], [10**12], ["a"], [0.5]])
    def test_what_can_be_no_token_id(self, codec: TextCodec, ids: list[Any]) -> None:
        for decode in (codec.decode, codec.stream().push):
            with pytest.raises(InvalidArgument, match=r"no token ids .* expected integers from 0"):
                decode(ids)

    def test_ids_that_the_tokenizer_does_not_have_are_silent(self, codec: TextCodec) -> None:
        assert codec.decode([5000, *codec.encode("a")]) == "a"
        assert streamed(codec, [[5000], codec.encode("a")]) == ["", "a", ""]

    def test_what_is_no_unicode_text(self, codec: TextCodec) -> None:
        for text in ("ab\udcff", "\ud800"):
            with pytest.raises(InvalidArgument, match=r"holds '\\ud.*' at index .*expected Unicode text"):
                codec.encode(text)
            with pytest.raises(InvalidArgument, match="expected Unicode text"):
                codec.chat([{"role": "user", "content": text}])
        with pytest.raises(InvalidArgument, match="the text is a bytes, expected a str"):
            codec.encode(b"a")  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("messages", "found"),
        [
            (["abc"], "message 0 is a str"),
            ([{"role": "user", "content": "x"}, 1], "message 1 is a int"),
            ("abc", "the messages are a str"),
            (None, "the messages are a NoneType"),
            ({"role": "user"}, "the messages are a dict"),
            ([{1: 2}], "message 0: role is None"),
        ],
    )
    def test_what_is_no_conversation(self, codec: TextCodec, messages: Any, found: str) -> None:
        with pytest.raises(InvalidArgument, match=found):
            codec.chat(messages)

    @pytest.mark.parametrize(
        "source", ["{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{% if 1 %}" * 300 + "{% endif %}" * 300]
    )
    def test_a_template_nested_too_deeply(self, tmp_path: Path, source: str) -> None:
        with pytest.raises(BundleInvalid, match="chat template cannot be compiled") as caught:
            open_codec(tmp_path, byte_level(), source)
        assert "\n" not in str(caught.value)

    def test_a_template_that_writes_without_end(self, tmp_path: Path) -> None:
        loop = (
            "{% for a in range(99999) %}{% for b in range(99999) %}{{ 'x' * 1000 }}{% endfor %}{% endfor %}"
        )
        codec = open_codec(tmp_path, byte_level(), loop)
        with pytest.raises(InvalidArgument, match="writes more than 16777216 characters"):
            codec.chat([{"role": "user", "content": "x"}])

    def test_the_templates_own_refusal_is_passed_on(self, codec: TextCodec) -> None:
        messages = [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]
        with pytest.raises(InvalidArgument, match="system comes first"):
            codec.chat(messages)

    @pytest.mark.parametrize("message", [{}, {"content": "x"}, {"role": None, "content": "x"}, {"role": 1}])
    def test_a_message_without_a_role(self, codec: TextCodec, message: dict[str, Any]) -> None:
        with pytest.raises(InvalidArgument, match=r"message 0: role is (None|1), expected a text"):
            codec.chat([message])

    def test_no_template(self, tmp_path: Path) -> None:
        codec = open_codec(tmp_path, byte_level(), template=None)
        assert not codec.has_chat_template
        with pytest.raises(InvalidArgument, match="has no chat template"):
            codec.chat([{"role": "user", "content": "x"}])

    def test_a_template_cannot_reach_the_interpreter(self, tmp_path: Path) -> None:
        codec = open_codec(tmp_path, byte_level(), "{{ messages.__class__.__mro__[1].__subclasses__() }}")
        with pytest.raises(InvalidArgument, match="refuses"):
            codec.chat([{"role": "user", "content": "x"}])

    def test_a_template_cannot_change_the_messages(self, tmp_path: Path) -> None:
        codec = open_codec(tmp_path, byte_level(), "{{ messages.append(1) }}")
        with pytest.raises(InvalidArgument, match="refuses"):
            codec.chat([{"role": "user", "content": "x"}])

    def test_a_template_with_a_syntax_error(self, tmp_path: Path) -> None:
        with pytest.raises(BundleInvalid, match="chat template cannot be parsed, line 2"):
            open_codec(tmp_path, byte_level(), "fine\n{% if %}")

    @pytest.mark.parametrize(
        "content", [b"{}", b"", b"\xff", json.dumps({"model": {"type": "BPE"}}).encode()]
    )
    def test_a_tokenizer_file_that_is_none(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "tokenizer.json").write_bytes(content)
        with pytest.raises(BundleInvalid, match=r"tokenizer.*build the bundle again"):
            TextCodec.open(tmp_path, SPEC.model_copy(update={"chat_template": None}))

    @pytest.mark.parametrize("library", ["tokenizers", "jinja2"])
    def test_a_missing_library_names_the_extra(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
    ) -> None:
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(BackendMissing, match=rf"needs {library}.*pip install 'specruntime\[text\]'"):
            open_codec(tmp_path, byte_level())
