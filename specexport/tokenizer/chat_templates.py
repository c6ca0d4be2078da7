"""Holds a checkpoint's chat template, as a bundle renders it, against transformers.

Conversations of every kind are rendered by both. A template that a bundle would render otherwise, or not at all, is
refused while the tokenizer is read, before any weights are.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from specexport.errors import CheckpointUnsupported
from specexport.tokenizer.files import TEMPLATE_FILE, describe_tokenizer
from specruntime.errors import SpecError
from specruntime.text.chat_template import FIXED_DATE, ChatTemplate

_CLOCK = "strftime_now"
_CALLED = re.compile(_CLOCK + r"""\(\s*(["'])([^"']*)\1\s*\)""")
_SYSTEM = {"role": "system", "content": "Be brief.\nAlways."}
_ASKED = {"role": "user", "content": "  Is 1 < 2 & \"\u00e9\" == '\U0001f600'?\n\n    x = 1\n"}
_ANSWER = {"role": "assistant", "content": '<think>\nI wonder.\n</think>\n\nYes: {"a": [1]}\n'}
_AGAIN = {"role": "user", "content": "Why?"}
_PARTS = {"role": "user", "content": [{"type": "text", "text": "Hi."}, {"type": "text", "text": " There."}]}
_CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": "\u00e9"}}}],
}
# As clients dump what they were given: keys without a value, and a call that says nothing.
_NULLS = {"role": "user", "content": "Hi.", "name": None, "tool_calls": None}
_SILENT_CALL = _CALL | {"content": None, "refusal": None, "reasoning_content": None}
_RESULT = {"role": "tool", "name": "f", "content": "3"}
# Roles in the orders that templates tell apart; many templates refuse some of them.
CONVERSATIONS: tuple[list[dict[str, Any]], ...] = (
    [_AGAIN],
    [_ASKED],
    [_SYSTEM, _ASKED],
    [_ASKED, _ANSWER, _AGAIN],
    [_SYSTEM, _ASKED, _ANSWER, _AGAIN],
    [_ASKED, _ANSWER],
    [_PARTS],
    [_SYSTEM, _ASKED, _CALL, _RESULT],
    [_ASKED, _ANSWER | {"reasoning_content": "Hm."}, _AGAIN],
    [_AGAIN, _AGAIN],
    [_NULLS],
    [_NULLS, _SILENT_CALL, _RESULT],
    [_NULLS, {key: value for key, value in _CALL.items() if key != "content"}, _RESULT],
    [{"role": "developer", "content": "Be kind."}, _ASKED],
)


def check_chat_template(source: str, directory: Path) -> tuple[str, ...]:
    """Warnings about the template in a directory of tokenizer files; empty without a template.

    Raises `CheckpointUnsupported` for a template that cannot be compiled, or that a bundle would render otherwise than
    transformers does whose clock, `strftime_now`, is the bundle's.
    """
    place = directory / TEMPLATE_FILE
    if not place.is_file():
        return ()
    text = place.read_text(encoding="utf-8")
    try:
        named = describe_tokenizer(directory.parent, directory.name).special_tokens
        template = ChatTemplate(text, named)
    except SpecError as error:
        raise CheckpointUnsupported(f"{source}: {error}; {_CURE}") from None
    for messages, opened in _cases():
        expected = _reference(_with_fixed_date(text), messages, opened, named)
        found = _rendered(template, messages, opened)
        if expected is not None and found != expected:
            raise CheckpointUnsupported(f"{source}: {_difference(messages, found, expected)}; {_CURE}")
    if _CLOCK not in text:
        return ()
    guarded = _without_clock(text)
    rendered = [case for case in _cases() if _rendered(template, *case) is not None]
    asked = any(_reference(guarded, *case, named) is None for case in rendered)
    outcome = f"it gets {FIXED_DATE:%-d %B %Y}" if asked else "chats are rendered without it"
    return (
        f"the chat template asks for today's date ({_CLOCK}), which bundles leave out, as equal prompts must give "
        f"equal tokens on every day: {outcome if rendered else 'this bundle will refuse every chat'}",
    )


_CURE = "change the checkpoint's chat template, or remove it and prompt with plain text"


def _cases() -> Iterator[tuple[list[dict[str, Any]], bool]]:
    return ((messages, opened) for messages in CONVERSATIONS for opened in (True, False))


def _without_clock(text: str) -> str:
    """Return the template with the clock undefined, by a tag on a line of its own, which leaves nothing in the text."""
    return f"{{% set {_CLOCK} = not_given %}}\n{text}" if _CLOCK in text else text


def _with_fixed_date(text: str) -> str:
    """Return the template with the clock undefined, its calls replaced by what a bundle answers them."""
    return _without_clock(_CALLED.sub(lambda call: json.dumps(FIXED_DATE.strftime(call[2])), text))


@cache
def _tokenizer() -> PreTrainedTokenizerFast:
    """One without a vocabulary: templates are rendered by it, and nothing is tokenized."""
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))


def _reference(text: str, messages: list[dict[str, Any]], opened: bool, named: dict[str, Any]) -> str | None:
    """None where the template refuses the conversation."""
    try:
        return str(
            _tokenizer().apply_chat_template(
                messages, chat_template=text, add_generation_prompt=opened, tokenize=False, **named
            )
        )
    except Exception:  # a template is a program: it may raise anything
        return None


def _rendered(template: ChatTemplate, messages: list[dict[str, Any]], opened: bool) -> str | None:
    try:
        return template.render(messages, add_generation_prompt=opened)
    except SpecError:
        return None


def _difference(messages: list[dict[str, Any]], found: str | None, expected: str) -> str:
    roles = ", ".join(message["role"] for message in messages)
    if found is None:
        return (
            f"its chat template fails in a bundle for a conversation of {roles}, which transformers renders"
        )
    start = next((i for i, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), 0)
    start = max(0, start - 10)
    return (
        f"its chat template renders a conversation of {roles} in a bundle as ...{found[start : start + 40]!r}, "
        f"expected ...{expected[start : start + 40]!r}, as transformers does"
    )
