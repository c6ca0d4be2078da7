"""Every field of the official client's types is decided: honoured, or neutral values only, as docs/serving.md says.

The client's types say which fields there are and which values they take; the document says which of them pass. A
further field or value in a later client fails here until it is decided.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from types import NoneType
from typing import Any, Literal, Required, Union, get_args, get_origin, is_typeddict

import pytest
import typing_extensions
from openai.types import completion_create_params as text_params
from openai.types.chat import ChatCompletionContentPartRefusalParam as RefusalPartParam
from openai.types.chat import ChatCompletionContentPartTextParam as TextPartParam
from openai.types.chat import ChatCompletionFunctionToolParam as ToolParam
from openai.types.chat import ChatCompletionMessage, ChatCompletionMessageParam, ParsedChatCompletionMessage
from openai.types.chat import ChatCompletionMessageFunctionToolCallParam as ToolCallParam
from openai.types.chat import ChatCompletionStreamOptionsParam as StreamOptionsParam
from openai.types.chat import chat_completion_content_part_param as parts
from openai.types.chat import chat_completion_message_function_tool_call_param as tool_call_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.shared_params import FunctionDefinition
from pydantic import BaseModel, ValidationError

from specruntime.manifest.messages import describe_problem, path_of, worst
from specruntime.server.neutral import Neutral
from specruntime.server.schema import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    PromptCacheOptions,
    StreamOptions,
    TextPart,
)
from specruntime.server.tool_schema import CalledFunction, Function, Tool, ToolCall
from specruntime.server.work import sampling_params
from tests.conftest import REPOSITORY
from tests.runtime.server.conftest import Running

MESSAGE = {"role": "assistant", "content": "x"}
CHAT = {"messages": [MESSAGE]}
MESSAGE_PARAMS = get_args(ChatCompletionMessageParam)
# Where a value is put: the prefix that the document writes, the request around it, and what the client and we call it.
PLACES: list[tuple[str, Any, Any, type[BaseModel]]] = [
    ("", CHAT, chat_params.CompletionCreateParamsNonStreaming, ChatRequest),
    ("", CHAT, chat_params.CompletionCreateParamsStreaming, ChatRequest),
    ("", {"prompt": "x"}, text_params.CompletionCreateParamsNonStreaming, CompletionRequest),
    ("", {"prompt": "x"}, text_params.CompletionCreateParamsStreaming, CompletionRequest),
    ("stream_options.", CHAT, StreamOptionsParam, StreamOptions),
    ("prompt_cache_options.", CHAT, chat_params.PromptCacheOptions, PromptCacheOptions),
    *(("messages[].", CHAT, param, ChatMessage) for param in MESSAGE_PARAMS),
    ("messages[].content[].", CHAT, TextPartParam, TextPart),
    ("tools[].", CHAT, ToolParam, Tool),
    ("tools[].function.", CHAT, FunctionDefinition, Function),
    ("messages[].tool_calls[].", CHAT, ToolCallParam, ToolCall),
    ("messages[].tool_calls[].function.", CHAT, tool_call_params.Function, CalledFunction),
]
FUNCTION = {"name": "x", "arguments": "{}"}
# Values that a type does not say, or not within the ranges of the API.
STATED: dict[str, tuple[Any, ...]] = {
    "messages": ([MESSAGE],),
    "prompt": ("x", ["x"], [1], [[1]]),
    "logit_bias": ({}, {"3": 5}),
    "stream_options": ({}, {"include_usage": False}),
    "messages[].content": ("x", [{"type": "text", "text": "x"}]),
    "tools[].function": ({"name": "x"},),
    "messages[].tool_calls[].function": (FUNCTION,),
}
# The deprecated role of function results is refused by its name.
REFUSED = {"messages[].role": "function"}


def section() -> str:
    text = (REPOSITORY / "docs/serving.md").read_text(encoding="utf-8")
    return text[text.index("Every field of the API is known") : text.index("| status | when |")]


def documented() -> tuple[set[str], set[str], dict[str, tuple[list[Any], str]]]:
    """Fields that are honoured, those that are labels, and for the others the values that pass, and the reason."""
    honoured: set[str] = set()
    labels: set[str] = set()
    neutral: dict[str, tuple[list[Any], str]] = {}
    for line in section().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = re.findall(r"`([^`]*)`", cells[0])
        if len(cells) == 2 and names:
            (labels if cells[1].startswith("labels") else honoured).update(names)
        if len(cells) == 3 and names:
            values = [None] if cells[1].startswith("null") else []
            values += [json.loads(value) for value in re.findall(r"`([^`]*)`", cells[1])]
            neutral |= dict.fromkeys(names, (values, cells[2]))
    return honoured, labels, neutral


HONOURED, LABELS, NEUTRAL = documented()
OBJECTS = {"stream_options", "prompt_cache_options"}  # whose fields are documented, each for itself


def fields_of(param: Any) -> dict[str, tuple[Any, bool]]:
    """Types of a TypedDict of the client, and whether the field is required."""
    hints = typing_extensions.get_type_hints(param, include_extras=True)
    plain = typing_extensions.get_type_hints(param)
    required: tuple[Any, ...] = (Required, typing_extensions.Required)
    return {name: (plain[name], get_origin(hint) in required) for name, hint in hints.items()}


def examples(kind: Any) -> Iterator[Any]:
    """JSON values of a type of the client: of a literal all, of others one or some."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is NoneType or kind is None:
        yield None
    elif origin is Literal:
        yield from arguments
    elif origin is Union or type(kind).__name__ == "UnionType":
        for argument in arguments:
            yield from examples(argument)
    elif kind in SIMPLE:
        yield from SIMPLE[kind]
    elif is_typeddict(kind) or typing_extensions.is_typeddict(kind):
        required = {name: hint for name, (hint, needed) in fields_of(kind).items() if needed}
        yield {name: next(examples(hint)) for name, hint in required.items()}
    elif origin is not None and issubclass(origin, Mapping):
        yield from ({}, {"k": next(examples(arguments[1]))})
    elif origin is not None and (issubclass(origin, Iterable) or origin.__name__ == "SequenceNotStr"):
        yield from ([], *([value] for value in examples(arguments[0])))
    else:
        raise AssertionError(f"{kind} is a type that this test does not know")


SIMPLE: dict[Any, tuple[Any, ...]] = {
    bool: (True, False), int: (1, 2), float: (0.5,), str: ("x",), object: ("x",),
}  # fmt: skip


def request_with(prefix: str, base: dict[str, Any], role: str, field: dict[str, Any]) -> dict[str, Any]:
    """A request that has the one field of `field`, or none, at the place."""
    message = {**MESSAGE, "role": role}
    if prefix == "messages[].":
        return {"messages": [{**message, **field}]}
    if prefix == "messages[].content[].":
        return {"messages": [{**message, "content": [{"type": "text", "text": "x", **field}]}]}
    of_function = field if prefix.endswith("function.") else {}
    of_tool = {} if prefix.endswith("function.") else field
    if prefix.startswith("tools"):
        tool = {"type": "function", "function": {"name": "x", **of_function}, **of_tool}
        return {**base, "tools": [tool]}
    if prefix.startswith("messages[].tool_calls"):
        call = {"id": "1", "type": "function", "function": {**FUNCTION, **of_function}, **of_tool}
        return {"messages": [{**message, "tool_calls": [call]}]}
    inner = {prefix.rstrip("."): field} if prefix else field
    return {**base, "stream": True, **inner}


def model_of(request: Mapping[str, Any]) -> type[ChatRequest] | type[CompletionRequest]:
    return ChatRequest if "messages" in request else CompletionRequest


def work(request: Mapping[str, Any]) -> tuple[Any, ...]:
    """All that a request comes to: parameters and messages."""
    asked = model_of(request).model_validate(request)
    params = sampling_params(asked.model_copy(update={"seed": 1}))  # where none is given, it is drawn
    messages = [m.as_mapping() for m in asked.messages] if isinstance(asked, ChatRequest) else asked.prompt
    return params, messages


def role_of(param: Any) -> str:
    role = str(get_args(fields_of(param)["role"][0])[0]) if param in MESSAGE_PARAMS else "assistant"
    return "user" if role == "function" else role


CASES = [
    pytest.param(prefix, name, base, param, id=f"{param.__name__}-{prefix}{name}")
    for prefix, base, param, _ in PLACES
    for name in fields_of(param)
]


@pytest.mark.parametrize(("prefix", "name", "base", "param"), CASES)
def test_each_value_of_each_field_passes_or_is_refused_as_documented(
    prefix: str, name: str, base: dict[str, Any], param: Any
) -> None:
    path = prefix + name
    assert path in HONOURED | LABELS | OBJECTS | set(NEUTRAL), (
        f"{path} is new: decide it, in schema.py and docs/serving.md"
    )
    kind, required = fields_of(param)[name]
    values = STATED.get(path) or [value for value in examples(kind) if value is not None]
    for value in [*values, *([] if required else [None])]:
        request = request_with(prefix, base, role_of(param), {name: value})
        if path in HONOURED and '"custom"' in json.dumps(value):
            with pytest.raises(ValidationError, match="function"):
                model_of(request).model_validate(request)
        elif (path in REFUSED and value == REFUSED[path]) or (
            path in NEUTRAL and value not in NEUTRAL[path][0]
        ):
            require_refusal(request, path)
        elif value is None or path not in HONOURED | OBJECTS:
            without = {"content": ""} if path == "messages[].content" else {}
            assert work(request) == work(request_with(prefix, base, role_of(param), without)), value
        else:
            model_of(request).model_validate(request)


def require_refusal(request: dict[str, Any], path: str) -> None:
    """With the field by name and, where the document gives one, the reason."""
    model = model_of(request)
    with pytest.raises(ValidationError) as caught:
        model.model_validate(request)
    assert re.sub(r"\[\d+\]", "[]", path_of(worst(caught.value), model)) == path
    line = describe_problem(caught.value, model)
    assert "found" in line and ("expected" in line or "allowed" in line)
    assert path not in NEUTRAL or line.endswith(f"; {NEUTRAL[path][1]}")


def test_the_document_lists_the_fields_of_the_models() -> None:
    found = {
        prefix + name: next((item for item in field.metadata if isinstance(item, Neutral)), None)
        for prefix, _, _, model in PLACES
        for name, field in model.model_fields.items()
    }
    neutral = {path: (list(item.values), item.why) for path, item in found.items() if item is not None}
    assert neutral == NEUTRAL
    assert {path for path, item in found.items() if item is None} == HONOURED | LABELS | OBJECTS


@pytest.mark.parametrize("message", [ChatCompletionMessage, ParsedChatCompletionMessage[None]])
def test_messages_of_the_client_can_be_sent_back(message: type[BaseModel]) -> None:
    """With every field that the client's class has, as it dumps them."""
    said = message.model_validate({"role": "assistant", "content": "x"}).model_dump()
    assert set(said) > {"audio", "function_call", "refusal", "tool_calls", "annotations"}
    assert work({"messages": [said]}) == work(CHAT)
    assert work({"messages": [{**said, "annotations": [], "tool_calls": []}]}) == work(CHAT)


@pytest.mark.parametrize(
    "part",
    [
        part
        for part in (*get_args(parts.ChatCompletionContentPartParam), RefusalPartParam)
        if part is not TextPartParam
    ],
)
def test_other_parts_of_messages_are_refused_by_their_type(part: Any) -> None:
    request = {"messages": [{"role": "user", "content": [next(examples(part))]}]}
    require_refusal(request, "messages[].content[].type")


@pytest.mark.parametrize(("seed", "same"), [(-1, 2**63 - 1), (-(2**63), 0), (2**63 - 1, 2**63 - 1), (0, 0)])
def test_a_seed_is_any_signed_integer_of_64_bits(seed: int, same: int) -> None:
    """The API's specification: minimum -9223372036854776000, maximum 9223372036854776000."""
    for request in (CHAT, {"prompt": "x"}):
        asked = model_of(request).model_validate({**request, "seed": seed})
        assert sampling_params(asked) == sampling_params(asked.model_copy(update={"seed": same}))
        assert sampling_params(asked).seed == same
    require_refusal({**CHAT, "seed": -(2**63) - 1}, "seed")


def test_an_assistant_may_leave_its_content_out() -> None:
    """The client's type: required unless tools are called, which null says as well."""
    left = work({"messages": [{"role": "assistant"}, {"role": "user", "content": "x"}]})
    assert left == work(
        {"messages": [{"role": "assistant", "content": None}, {"role": "user", "content": "x"}]}
    )
    for role in ("system", "developer", "user", "tool"):
        require_refusal({"messages": [{"role": role}]}, "messages[].content")
    require_refusal({"messages": [{"role": "user", "content": []}]}, "messages[].content")


def test_null_is_the_content_of_an_assistant_only() -> None:
    for role in ("system", "developer", "user", "tool"):
        require_refusal({"messages": [{"role": role, "content": None}]}, "messages[].content")


def test_neutral_values_change_nothing_of_an_answer(tiny_server: Running) -> None:
    """All that pass, by way of the official client; the answer's message is sent back with all its fields."""
    client = tiny_server.client()
    options: dict[str, Any] = {"model": "tiny-random", "max_tokens": 8, "temperature": 0}
    top = {path: values for path, (values, _) in NEUTRAL.items() if "." not in path and "[" not in path}
    chat = {path: values for path, values in top.items() if path in ChatRequest.model_fields}
    message: Any = {"role": "user", "content": "the quick brown fox"}
    plain = client.chat.completions.create(messages=[message], **options)
    for pick in (0, -1):
        given = {path: values[pick] for path, values in chat.items()}
        answer = client.chat.completions.create(messages=[message], **options, extra_body=given)
        assert answer.choices == plain.choices
    said: Any = plain.choices[0].message.model_dump()
    again = client.chat.completions.create(messages=[message, said, message], **options)
    short: Any = {"role": "assistant", "content": said["content"]}
    assert (
        again.choices == client.chat.completions.create(messages=[message, short, message], **options).choices
    )
