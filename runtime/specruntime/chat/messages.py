"""Turns the messages of the OpenAI API into those that chat templates take: calls of earlier turns, above all."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from specruntime.errors import InvalidArgument
from specruntime.text.chat_template import Message
from specruntime.tools.formats import format_of


def messages_for(template: str, messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages with the arguments of calls as mappings, which templates write as JSON.

    The API has them as JSON text. A template that does not know of calls gets them in the content, as its model wrote
    them. Raises `InvalidArgument` for calls of another form; other messages are the template's matter.
    """
    if isinstance(messages, str | Mapping):
        return messages
    return [
        _converted(index, message, template)
        if isinstance(message, Mapping) and message.get("tool_calls")
        else message
        for index, message in enumerate(messages)
    ]


def _converted(index: int, message: Message, template: str) -> Message:
    calls = message["tool_calls"]
    if isinstance(calls, str | Mapping) or not isinstance(calls, Sequence):
        raise _misfit(index)
    converted = [_call(index, call) for call in calls]
    if "tool_calls" in template:
        return {**message, "tool_calls": converted}
    format = format_of(template)
    if format is None or not isinstance(message.get("content") or "", str):
        raise InvalidArgument(
            f"message {index} has tool_calls, and the chat template of this bundle does not show how its model writes "
            "them: leave them out"
        )
    written = format.write([(call["function"]["name"], call["function"]["arguments"]) for call in converted])
    content = "\n".join(text for text in (message.get("content"), written) if text)
    return {**{key: value for key, value in message.items() if key != "tool_calls"}, "content": content}


def _call(index: int, call: object) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise _misfit(index)
    name, arguments = function.get("name"), function.get("arguments", "{}")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise _misfit(index)
    kept = {key: value for key, value in call.items() if key in ("id", "type") and value is not None}
    return {**kept, "function": {"name": name, "arguments": arguments}}


def _misfit(index: int) -> InvalidArgument:
    return InvalidArgument(
        f"message {index}: tool_calls is not a list of calls, expected of each a function with its name and its "
        "arguments as the JSON text of an object"
    )
