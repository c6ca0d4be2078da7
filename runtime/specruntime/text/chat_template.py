"""A checkpoint's chat template, rendered as transformers renders it.

Owns the template's environment and the variables it sees. A template is a program from the checkpoint: it runs in a
sandbox that cannot change what it is given, and may fail in any way. Knows nothing of tokenizers.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from specruntime.errors import BackendMissing, BundleInvalid, InvalidArgument

if TYPE_CHECKING:
    from jinja2 import Environment, Template, Undefined
    from jinja2.ext import Extension
    from jinja2.parser import Parser

_LONGEST_CHAT = 2**24  # characters
FIXED_DATE = datetime(2024, 7, 26)
"""Today, for templates that ask for it without a guard: the date that Llama's published templates fall back to."""
# The names a message's reasoning goes by; templates read the first, some the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")
Message = Mapping[str, Any]


class ChatTemplate:
    """A compiled template with the special tokens it may write. May be shared by threads."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens` by the names templates use, such as `bos_token`; a name that is missing is undefined there.

        Raises `BackendMissing` without jinja2, `BundleInvalid` for a template that cannot be compiled.
        """
        self.source = source
        self._template = _compile(source)
        self._special_tokens = dict(special_tokens)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Return the text of a conversation; messages are mappings with at least `role`.

        `tools` are described as in the API of OpenAI; None offers none. Raises `InvalidArgument` for messages of
        another form and where the template refuses or fails.
        """
        given = [_checked(index, message) for index, message in enumerate(_listed(messages))]
        try:
            pieces = self._template.generate(
                messages=given,
                tools=None if tools is None else list(tools),
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
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


def _listed(messages: object) -> Sequence[object]:
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise InvalidArgument(f"the messages are a {type(messages).__name__}, expected a list of mappings")
    return messages


def _checked(index: int, message: object) -> dict[str, Any]:
    """Return the message as templates get it: without keys of no value, its reasoning under each name that is read.

    Source: `apply_chat_template`, for which a null is a key that was not given, and a message may lack its content (an
    assistant's that only calls tools).
    """
    if not isinstance(message, Mapping):
        raise InvalidArgument(
            f"message {index} is a {type(message).__name__}, expected a mapping with 'role' and 'content'"
        )
    if not isinstance(message.get("role"), str):
        raise InvalidArgument(
            f"message {index}: role is {message.get('role')!r:.60}, expected a text such as 'user'; it has the keys "
            f"{sorted(map(str, message))}"
        )
    given = {key: value for key, value in message.items() if value is not None}
    reasoning = next((given[name] for name in _REASONING if name in given), None)
    return given if reasoning is None else {"thinking": reasoning, **given, "reasoning_content": reasoning}


def _compile(source: str) -> "Template":
    try:
        import jinja2
    except ImportError as error:
        raise BackendMissing(
            "text needs jinja2, which is not installed; pip install 'specruntime[text]', or pass token ids"
        ) from error
    try:
        return _environment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise BundleInvalid(
            f"the chat template cannot be parsed, line {error.lineno}: {error.message}"
        ) from error
    except Exception as error:  # nested too deeply for jinja2 or for Python's compiler, among others
        raise BundleInvalid(
            f"the chat template cannot be compiled: {_one_line(error)}; expected a jinja2 template, "
            "build from a checkpoint with another one"
        ) from error


def _environment() -> "Environment":
    """Return the names, filters and tags that transformers gives a template, in a sandbox.

    Source: `transformers.utils.chat_template_utils`. The clock alone differs: equal prompts must give equal tokens on
    every day, so `strftime_now` is not defined for a template that asks whether it is, which then takes the date it
    falls back to; for one that calls it without asking, today is `FIXED_DATE`.
    """
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_generation(), "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _clock()
    environment.globals["dict"] = _Dictionaries()
    environment.globals["namespace"] = _namespace()
    return environment


def _generation() -> "type[Extension]":
    """`{% generation %}`, which marks what an assistant wrote, for training; in a prompt its content is itself."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: "Parser") -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            # A block of its own, as a macro is: what is set inside ends with it.
            return nodes.CallBlock(self.call_method("written"), [], [], body).set_lineno(line)

        def written(self, caller: Any) -> str:
            return str(caller())

    return Generation


def _namespace() -> type:
    """`namespace`, which takes no names that begin with an underscore: they are the interpreter's."""
    import jinja2

    class Namespace(jinja2.utils.Namespace):
        def __init__(*args: Any, **kwargs: Any) -> None:  # `self` is a name that a template may use
            self, args = args[0], args[1:]
            given = dict(*args, **kwargs)
            for name in given:
                _require_public(name)
            jinja2.utils.Namespace.__init__(self, given)

        def __setitem__(self, name: str, value: Any) -> None:
            _require_public(name)
            super().__setitem__(name, value)

    return Namespace


def _require_public(name: object) -> None:
    import jinja2

    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"the namespace attribute {name!r} begins with '_'")


def _clock() -> "Undefined":
    """`strftime_now`, not defined, and yet called by templates that do not ask."""
    import jinja2

    class Clock(jinja2.Undefined):
        # What jinja2 reads of whatever it calls; of an undefined value it cannot be read.
        jinja_pass_arg = None
        unsafe_callable = alters_data = False

        def __call__(self, format: str) -> str:  # type: ignore[override]
            return FIXED_DATE.strftime(format)

    return Clock(name="strftime_now")


def _raise_exception(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(message)


class _Dictionaries:
    """What `dict` is in a template: made and filled, and nothing of Python's type reached through it."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON, in the order of transformers' arguments; jinja2's own filter escapes HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _joined(pieces: Iterable[str]) -> str | None:
    """Return the whole text; None as soon as it is longer than any prompt."""
    parts, length = [], 0
    for piece in pieces:
        parts.append(piece)
        length += len(piece)
        if length > _LONGEST_CHAT:
            return None
    return "".join(parts)


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
