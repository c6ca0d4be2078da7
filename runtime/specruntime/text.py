"""Text in and out: the bundle's tokenizer file and chat template.

Needs the extra `text` (tokenizers, jinja2); both are imported when a bundle's tokenizer is first used, so that hosts
which exchange token ids need neither. Knows nothing of sessions or sampling.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from specruntime.errors import BackendMissing, BundleInvalid, InvalidArgument
from specruntime.manifest import TokenizerSpec

if TYPE_CHECKING:
    from jinja2 import Template
    from tokenizers import Tokenizer

INCOMPLETE = "\ufffd"  # what a decoder writes for bytes that are not (yet) a character
_CHARACTER_BYTES = 4  # the most that UTF-8 has
_LONGEST_PIECE = (
    16  # tokens without a whole character at their end that are decoded again with each further one
)
_LONGEST_CHAT = 2**24  # characters
Message = Mapping[str, Any]


class TextCodec:
    """The tokenizer of one bundle. Holds no state of a conversation; may be shared by sessions and threads."""

    def __init__(self, tokenizer: "Tokenizer", template: "Template | None", spec: TokenizerSpec) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._spec = spec
        added = tokenizer.get_added_tokens_decoder()
        self._special = frozenset(token for token, content in added.items() if content.special)

    @classmethod
    def open(cls, root: Path, spec: TokenizerSpec) -> "TextCodec":
        """Reads the tokenizer and template named by `spec` under the bundle directory `root`.

        Raises `BackendMissing` without the extra `text`, `BundleInvalid` when a file cannot be read or parsed.
        """
        template = None
        if spec.chat_template is not None:
            template = _compile_template(_read(root / spec.chat_template))
        return cls(_parse_tokenizer(_read(root / spec.file)), template, spec)

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text. Special tokens are added only where the tokenizer file's own post-processor does.

        Raises `InvalidArgument` for what is no Unicode text, such as half a surrogate pair.
        """
        return list(self._tokenizer.encode(_checked_text(text)).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids without special tokens; bytes that form no character become U+FFFD.

        An id that the tokenizer does not have adds nothing. Raises `InvalidArgument` for what can be no id at all.
        """
        try:
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))
        except (OverflowError, TypeError) as error:
            raise _no_ids(error) from error

    def is_silent(self, token: int) -> bool:
        """True for a token that adds nothing to any text: a special one, or one that the tokenizer does not have."""
        try:
            return token in self._special or self._tokenizer.id_to_token(token) is None
        except (OverflowError, TypeError) as error:
            raise _no_ids(error) from error

    def chat(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a conversation, rendered by the bundle's chat template.

        `messages` are mappings with at least `role` and `content`, as in transformers' `apply_chat_template`.
        Raises `InvalidArgument` when the bundle has no template or the template refuses the messages.
        """
        text = self.render_chat(messages, add_generation_prompt)
        # The template writes the special tokens itself.
        return list(self._tokenizer.encode(_checked_text(text), add_special_tokens=False).ids)

    def render_chat(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The text that `chat` encodes; same errors."""
        if self._template is None:
            raise InvalidArgument(
                "this bundle has no chat template; encode plain text, or build from a checkpoint that has one"
            )
        if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
            raise InvalidArgument(
                f"the messages are a {type(messages).__name__}, expected a list of mappings"
            )
        for index, message in enumerate(messages):
            if not isinstance(message, Mapping):
                raise InvalidArgument(
                    f"message {index} is a {type(message).__name__}, expected a mapping with 'role' and 'content'"
                )
            if not isinstance(message.get("role"), str) or message.get("content") is None:
                raise InvalidArgument(
                    f"message {index} has keys {sorted(map(str, message))}; each message needs 'role' and 'content'"
                )
        try:
            pieces = self._template.generate(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                bos_token=self._spec.bos_token or "",
                eos_token=self._spec.eos_token or "",
            )
            text = _joined(pieces)
        except Exception as error:  # a template is a program from the checkpoint: it can fail in any way
            raise InvalidArgument(f"the chat template refuses these messages: {_one_line(error)}") from error
        if text is None:
            raise InvalidArgument(
                f"the chat template writes more than {_LONGEST_CHAT} characters for these messages, expected a prompt "
                "that fits a cache; shorten the messages, or build from a checkpoint with another template"
            )
        return text

    def stream(self) -> "TextStream":
        """A decoder for one answer's tokens as they are committed."""
        return TextStream(self)


class TextStream:
    """Turns tokens into text as they arrive, holding back bytes that do not form a character yet.

    Only the tokens since the last piece but one are decoded again, and of a run of broken bytes the last few, so the
    cost of a token does not grow with the answer; the piece before gives decoders that join words with spaces their
    context.
    """

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._ids: list[int] = []  # the piece before the one being formed, then the one being formed
        self._whole = 0  # tokens of `_ids` up to where the text last ended with a whole character
        self._shown = 0  # characters of the text of `_ids` that were returned

    def push(self, ids: Iterable[int]) -> str:
        """The text that became complete with these tokens; may be empty."""
        return "".join(self._push(token) for token in ids if not self._codec.is_silent(token))

    def flush(self) -> str:
        """What is still held back, with U+FFFD for bytes that never became a character. Ends the answer."""
        rest = self._codec.decode(self._ids)[self._shown :]
        self._ids, self._whole, self._shown = [], 0, 0
        return rest

    def _push(self, token: int) -> str:
        self._ids.append(token)
        text = self._codec.decode(self._ids)
        held = self._incomplete(text)
        piece = text[self._shown : len(text) - held]
        self._shown += len(piece)
        if piece and not held:
            self._forget(self._whole, "")
            self._whole = len(self._ids)
        elif len(self._ids) - self._whole > _LONGEST_PIECE:
            piece += self._forget(len(self._ids) - _CHARACTER_BYTES, text[len(text) - held :])
            self._whole = 0
        return piece

    def _incomplete(self, text: str) -> int:
        """Characters at the end of the text that a further token may change.

        A token has a byte or more, so what began four tokens ago is whole or broken by now, and of the rest no more
        than three bytes can be the start of a character. (A decoder that falls back to bytes spoils the whole
        character before the start of one, so until then the whole run is held.)
        """
        run = len(text) - len(text.rstrip(INCOMPLETE))
        return run if len(self._ids) - self._whole < _CHARACTER_BYTES else min(run, _CHARACTER_BYTES - 1)

    def _forget(self, count: int, held: str) -> str:
        """Drops the first tokens; returns the held text where the tokens left read otherwise alone, else nothing."""
        del self._ids[:count]
        rest = self._codec.decode(self._ids)
        agrees = rest.endswith(held)
        self._shown = len(rest) - len(held) if agrees else len(rest)
        return "" if agrees else held


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


def _compile_template(source: str) -> "Template":
    """The template in a sandbox that cannot change what it is given, with the names transformers offers.

    Source: `transformers.utils.chat_template_utils`. The clock (`strftime_now`) is left out: equal prompts must give
    equal tokens on every day, and templates that use it fall back to a fixed date.
    """
    try:
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        _refuse_missing("jinja2", error)

    def raise_exception(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)  # jinja's own escapes HTML

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise BundleInvalid(
            f"the chat template cannot be parsed, line {error.lineno}: {error.message}"
        ) from error
    except Exception as error:  # nested too deeply for jinja2 or for Python's compiler, among others
        raise BundleInvalid(
            f"the chat template cannot be compiled: {_one_line(error)}; expected a jinja2 template, "
            "build from a checkpoint with another one"
        ) from error


def _joined(pieces: Iterable[str]) -> str | None:
    """The whole text; None as soon as it is longer than any prompt."""
    parts, length = [], 0
    for piece in pieces:
        parts.append(piece)
        length += len(piece)
        if length > _LONGEST_CHAT:
            return None
    return "".join(parts)


def _checked_text(text: str) -> str:
    """The text as it is. Raises `InvalidArgument` for what tokenizers cannot take."""
    if not isinstance(text, str):
        raise InvalidArgument(f"the text is a {type(text).__name__}, expected a str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"the text holds {text[error.start]!r} at index {error.start}, which is no character; "
            "expected Unicode text, decode its bytes as UTF-8"
        ) from error
    return text


def _no_ids(error: Exception) -> InvalidArgument:
    return InvalidArgument(f"these are no token ids ({error}), expected integers from 0 to 2**32 - 1")


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _refuse_missing(library: str, error: ImportError) -> NoReturn:
    raise BackendMissing(
        f"text needs {library}, which is not installed; pip install 'specruntime[text]', or pass token ids"
    ) from error
