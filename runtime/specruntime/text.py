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
Message = Mapping[str, Any]


class TextCodec:
    """The tokenizer of one bundle. Holds no state of a conversation; may be shared by sessions and threads."""

    def __init__(self, tokenizer: "Tokenizer", template: "Template | None", spec: TokenizerSpec) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._spec = spec

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
        """Token ids of plain text. Special tokens are added only where the tokenizer file's own post-processor does."""
        return list(self._tokenizer.encode(text).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids without special tokens; bytes that form no character become U+FFFD."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def chat(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a conversation, rendered by the bundle's chat template.

        `messages` are mappings with at least `role` and `content`, as in transformers' `apply_chat_template`.
        Raises `InvalidArgument` when the bundle has no template or the template refuses the messages.
        """
        text = self.render_chat(messages, add_generation_prompt)
        # The template writes the special tokens itself.
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def render_chat(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The text that `chat` encodes; same errors."""
        if self._template is None:
            raise InvalidArgument(
                "this bundle has no chat template; encode plain text, or build from a checkpoint that has one"
            )
        for index, message in enumerate(messages):
            if not isinstance(message.get("role"), str) or message.get("content") is None:
                raise InvalidArgument(
                    f"message {index} has keys {sorted(message)}; each message needs 'role' and 'content'"
                )
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                bos_token=self._spec.bos_token or "",
                eos_token=self._spec.eos_token or "",
            )
        except Exception as error:  # a template is a program from the checkpoint: it can fail in any way
            raise InvalidArgument(f"the chat template refuses these messages: {error}") from error

    def stream(self) -> "TextStream":
        """A decoder for one answer's tokens as they are committed."""
        return TextStream(self)


class TextStream:
    """Turns tokens into text as they arrive, holding back bytes that do not form a character yet.

    Only the tokens since the last piece but one are decoded again, so the cost of a token does not grow with the
    answer; the piece before gives decoders that join words with spaces their context.
    """

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._ids: list[int] = []  # the piece before the one being formed, then the one being formed
        self._given = 0  # tokens of `_ids` whose text was returned

    def push(self, ids: Iterable[int]) -> str:
        """The text that became complete with these tokens; may be empty."""
        self._ids.extend(ids)
        return self._take(hold_incomplete=True)

    def flush(self) -> str:
        """What is still held back, with U+FFFD for bytes that never became a character. Ends the answer."""
        return self._take(hold_incomplete=False)

    def _take(self, *, hold_incomplete: bool) -> str:
        before = self._codec.decode(self._ids[: self._given])
        text = self._codec.decode(self._ids)
        if len(text) <= len(before) or (hold_incomplete and text.endswith(INCOMPLETE)):
            return ""
        del self._ids[: self._given]
        self._given = len(self._ids)
        return text[len(before) :]


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


def _refuse_missing(library: str, error: ImportError) -> NoReturn:
    raise BackendMissing(
        f"text needs {library}, which is not installed; pip install 'specruntime[text]', or pass token ids"
    ) from error
