"""Text in and out: the bundle's tokenizer file and chat template.

Needs the extra `text` (tokenizers, jinja2); both are imported when a bundle's tokenizer is first used, so that hosts
which exchange token ids need neither. Knows nothing of sessions or sampling.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from itertools import islice, product
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from specruntime.errors import BackendMissing, BundleInvalid, InvalidArgument
from specruntime.manifest.schema import TokenizerSpec
from specruntime.text.chat_template import ChatTemplate, Message

if TYPE_CHECKING:
    from tokenizers import Tokenizer

INCOMPLETE = "\ufffd"  # what a decoder writes for bytes that are not (yet) a character
_CHARACTER_BYTES = 4  # the most that UTF-8 has
# Tokens without a whole character at their end that are decoded again with each further one.
_LONGEST_PIECE = 16
# Tokens before an answer that its first ones are decoded with.
_CONTEXT = 16
# How a vocabulary writes a token of one byte, where its decoder falls back to bytes.
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")


class TextCodec:
    """The tokenizer of one bundle. Holds no state of a conversation; may be shared by sessions and threads."""

    def __init__(self, tokenizer: "Tokenizer", template: ChatTemplate | None) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._bytes: dict[int, bytes | None] = {}  # of tokens that were asked for
        added = tokenizer.get_added_tokens_decoder()
        self._special = frozenset(token for token, content in added.items() if content.special)

    @classmethod
    def open(cls, root: Path, spec: TokenizerSpec) -> "TextCodec":
        """Read the tokenizer and template named by `spec` under the bundle directory `root`.

        Raises `BackendMissing` without the extra `text`, `BundleInvalid` when a file cannot be read or parsed.
        """
        template = None
        if spec.chat_template is not None:
            template = ChatTemplate(_read(root / spec.chat_template), spec.special_tokens)
        return cls(_parse_tokenizer(_read(root / spec.file)), template)

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    @property
    def chat_template(self) -> str | None:
        """The source of the bundle's chat template; None where it has none."""
        return None if self._template is None else self._template.source

    @property
    def size(self) -> int:
        """How many tokens the tokenizer has, added ones included: one more than the highest id."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    @property
    def writes_bytes(self) -> bool:
        """Whether every byte has a token: the tokenizer is byte-level, or falls back to bytes."""
        return not self._decoders.isdisjoint(("ByteLevel", "ByteFallback"))

    def to_json(self) -> str:
        """Return the tokenizer as the text of its file."""
        return str(self._tokenizer.to_str())

    def encode_plain(self, text: str) -> list[int]:
        """`encode` without the special tokens that the post-processor adds."""
        return self.encode(text, add_special_tokens=False)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of plain text. Special tokens are added only where the tokenizer file's own post-processor does,
        and not without `add_special_tokens`: the text of a chat has those that its template wrote.

        Raises `InvalidArgument` for text that is not valid Unicode, such as half a surrogate pair.
        """
        return list(self._tokenizer.encode(_checked_text(text), add_special_tokens=add_special_tokens).ids)

    def special_tokens(self, text: str) -> dict[int, str]:
        """Return the special tokens, by id, whose names occur in the text."""
        names = ((token, str(self._tokenizer.id_to_token(token))) for token in self._special)
        return {token: name for token, name in names if name in text}

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids, without special tokens unless they are asked for.

        Bytes that form no character become U+FFFD, and an id that the tokenizer does not have adds nothing. Raises
        `InvalidArgument` for what can be no id at all.
        """
        try:
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))
        except (OverflowError, TypeError) as error:
            raise _no_ids(error) from error

    def is_silent(self, token: int) -> bool:
        """Return True for a token that adds nothing to any text: a special one, or one that the tokenizer does not
        have.
        """
        try:
            return token in self._special or self._tokenizer.id_to_token(token) is None
        except (OverflowError, TypeError) as error:
            raise _no_ids(error) from error

    def chat(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a conversation, rendered by the bundle's chat template.

        `messages` are mappings with at least `role`, as in transformers' `apply_chat_template`: null is not given.
        Raises `InvalidArgument` when the bundle has no template or the template refuses the messages.
        """
        text = self.render_chat(messages, add_generation_prompt)
        # The template writes the special tokens itself.
        return self.encode_plain(text)

    def render_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Return the text that `chat` encodes; same errors. The template gets the `tools` where there are some."""
        if self._template is None:
            raise InvalidArgument(
                "this bundle has no chat template; encode plain text, or build from a checkpoint that has one"
            )
        return self._template.render(messages, add_generation_prompt=add_generation_prompt, tools=tools)

    def stream(
        self, prompt: Sequence[int] = (), shown: Mapping[int, str] = MappingProxyType({})
    ) -> "TextStream":
        """Return a decoder for one answer's tokens as they are committed; `prompt` is what they follow.

        `shown`: special tokens that are part of the text, by name.
        """
        return TextStream(self, prompt, shown)

    def token_bytes(self, token: int) -> bytes | None:
        """Return what the token adds to a text that it does not begin: UTF-8, or some bytes of a character.

        None for a token that is silent. Raises `InvalidArgument` for what can be no id.
        """
        if token not in self._bytes:
            self._bytes[token] = None if self.is_silent(token) else self._bytes_of(token)
        return self._bytes[token]

    def _bytes_of(self, token: int) -> bytes:
        name = str(self._tokenizer.id_to_token(token))
        if "ByteFallback" in self._decoders and (byte := _BYTE.fullmatch(name)):
            return bytes.fromhex(byte[1])
        if "ByteLevel" in self._decoders and all(symbol in _byte_symbols() for symbol in name):
            return bytes(_byte_symbols()[symbol] for symbol in name)
        neutral = self._neutral
        before, twice = self.decode([neutral]), self.decode([neutral, neutral])
        between = self.decode([neutral, token, neutral])
        return (
            between.removeprefix(before).removesuffix(twice.removeprefix(before)).encode("utf-8", "replace")
        )

    def token_name(self, token: int) -> str:
        """Return the token as the vocabulary names it; nothing for one that it does not have."""
        return str(self._tokenizer.id_to_token(token) or "")

    def token_text(self, token: int) -> str:
        r"""Return the token for a reader: its text, the name of a silent one, and bytes that are no text as
        `\xe2\x80`.

        Source: the `token` of log-probabilities in the API of OpenAI.
        """
        data = self.token_bytes(token)
        if data is None:
            return str(self._tokenizer.id_to_token(token) or f"token_id:{token}")
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "".join(f"\\x{byte:02x}" for byte in data)

    @cached_property
    def _decoders(self) -> frozenset[str]:
        """The parts of the tokenizer's decoder."""
        decoder = self._tokenizer.decoder
        described = {} if decoder is None else json.loads(decoder.__getstate__())
        parts = described.get("decoders", [described])
        return frozenset(str(part.get("type")) for part in parts)

    @cached_property
    def _neutral(self) -> int:
        """A token to decode others between: the first that is a word or part of one."""
        words = (token for token in range(self._tokenizer.get_vocab_size()) if self.decode([token]).isalpha())
        return next(words, 0)


class TextStream:
    """Turns the tokens of an answer into text as they arrive, holding back bytes that do not form a character yet.

    The text is what decoding prompt and answer together adds to the prompt: its first word keeps the space before it.
    Where the prompt ends inside a character, the answer begins with that character. Where a decoder that falls back to
    bytes gives up whole characters next to broken bytes, the stream may have sent these before.

    Only the tokens since the last piece but one are decoded again, and of a run of broken bytes the last few, so the
    cost of a token does not grow with the answer; the piece before, at first the end of the prompt, gives decoders
    that join words with spaces their context. (tokenizers' `DecodeStream` does less: it has no flush, holds back broken
    bytes without a bound, and cannot begin inside a character.)
    """

    def __init__(
        self, codec: TextCodec, prompt: Sequence[int] = (), shown: Mapping[int, str] = MappingProxyType({})
    ) -> None:
        """Of the special tokens those in `shown` are text, by their names."""
        self._codec = codec
        self._named = shown
        # The piece before the one being formed, then the one being formed; and the tokens of these up to where the
        # text last ended with a whole character.
        self._ids, self._whole = _end_of(prompt, codec)
        text = codec.decode(self._ids)
        # Characters of the text of `_ids` that were returned, or are the prompt's.
        self._shown = len(text)
        # Tokens of a prompt that may end inside a character: until that is settled `_shown` is not known. Else 0.
        self._split = len(self._ids) if text.endswith(INCOMPLETE) else 0

    def push(self, ids: Iterable[int]) -> str:
        """Return the text that became complete with these tokens; may be empty."""
        return "".join(self._text_of(token) for token in ids)

    def flush(self) -> str:
        """Return what is still held back, with U+FFFD for bytes that never became a character. Ends the answer."""
        text = self._codec.decode(self._ids)
        self._settle(text)
        rest = text[self._shown :]
        self._ids, self._whole, self._shown = [], 0, 0
        return rest

    def _text_of(self, token: int) -> str:
        if token in self._named:  # text before and after it is decoded apart
            return self.flush() + self._named[token]
        return "" if self._codec.is_silent(token) else self._push(token)

    def _push(self, token: int) -> str:
        self._ids.append(token)
        text = self._codec.decode(self._ids)
        held = self._incomplete(text)
        if self._split and held and len(self._ids) - self._whole <= _LONGEST_PIECE:
            return ""
        self._settle(text)
        piece = text[self._shown : len(text) - held]
        self._shown += len(piece)
        if piece and not held:
            self._forget(self._whole, "")
            self._whole = len(self._ids)
        elif len(self._ids) - self._whole > _LONGEST_PIECE:
            piece += self._forget(len(self._ids) - _CHARACTER_BYTES, text[len(text) - held :])
            self._whole = 0
        return piece

    def _settle(self, text: str) -> None:
        """Find where in the text a split prompt ends: before a character that was only begun in it."""
        if self._split:
            ends = (self._codec.decode(self._ids[:count]) for count in range(self._split, -1, -1))
            self._shown = next(len(end) for end in ends if text.startswith(end))
            self._split = 0

    def _incomplete(self, text: str) -> int:
        """Characters at the end of the text that a further token may change.

        A token has a byte or more, so what began four tokens ago is whole or broken by now, and of the rest no more
        than three bytes can be the start of a character. (A decoder that falls back to bytes spoils the whole
        character before the start of one, so until then the whole run is held.)
        """
        run = len(text) - len(text.rstrip(INCOMPLETE))
        return run if len(self._ids) - self._whole < _CHARACTER_BYTES else min(run, _CHARACTER_BYTES - 1)

    def _forget(self, count: int, held: str) -> str:
        """Drop the first tokens; return the held text where the tokens left read otherwise alone, else nothing."""
        del self._ids[:count]
        rest = self._codec.decode(self._ids)
        agrees = rest.endswith(held)
        self._shown = len(rest) - len(held) if agrees else len(rest)
        return "" if agrees else held


def _end_of(prompt: Sequence[int], codec: TextCodec) -> tuple[list[int], int]:
    """Return the prompt's last tokens with a text, from where a character begins; and how many there are up to where
    one ends.

    Both ends may lie inside a character, whose tokens spoil those next to them in a decoder that falls back to bytes.
    """
    audible = (token for token in reversed(prompt) if not codec.is_silent(token))
    ids = list(islice(audible, _CONTEXT))[::-1]
    for start, cut in product(range(_CHARACTER_BYTES), repeat=2):
        whole = ids[start : max(len(ids) - cut, start)]
        text = codec.decode(whole)
        if INCOMPLETE not in (text[:1], text[-1:]):
            return ids[start:], len(whole)
    return ids, len(ids)


@cache
def _byte_symbols() -> Mapping[str, int]:
    """Return the characters with which byte-level vocabularies write bytes. Source: `bytes_to_unicode` of GPT-2."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BundleInvalid(
            f"{path.name} cannot be read as UTF-8 text: {error}; build the bundle again"
        ) from error


def _parse_tokenizer(text: str) -> "Tokenizer":
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        _refuse_missing("tokenizers", error)
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception
        raise BundleInvalid(
            f"the tokenizer file cannot be parsed: {error}; build the bundle again"
        ) from error


def _checked_text(text: str) -> str:
    """Return the text as it is. Raises `InvalidArgument` for what tokenizers cannot take."""
    if not isinstance(text, str):
        raise InvalidArgument(f"the text is a {type(text).__name__}, expected a str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"the text holds {text[error.start]!r} at index {error.start}, which is not a character; "
            "expected Unicode text, decode its bytes as UTF-8"
        ) from error
    return text


def _no_ids(error: Exception) -> InvalidArgument:
    return InvalidArgument(f"these are no token ids ({error}), expected integers from 0 to 2**32 - 1")


def _refuse_missing(library: str, error: ImportError) -> NoReturn:
    raise BackendMissing(
        f"text needs {library}, which is not installed; pip install 'specruntime[text]', or pass token ids"
    ) from error
