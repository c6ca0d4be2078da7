"""The official client offers tools and gets calls, whole and streamed, and sends them back with their results.

The model's text is dictated, so that each format of the wild is seen through the whole server.
"""

import json
from typing import Any

import openai
import pytest

from tests.runtime.server.conftest import Running
from tests.runtime.server.dictated import dictated
from tests.runtime.server.http import call, require_error

TURNS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
    "{{ m.content or '' }}{% if m.tool_calls %}{% for c in m.tool_calls %}CALL{% endfor %}{% endif %}"
    "{% if m.role == 'tool' %}#{{ m.tool_call_id }}{% endif %}<|end|>{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def client_of(server: Running) -> Any:
    """The official client, whose types know only what OpenAI has."""
    return server.client()


def template(call: str) -> str:
    """Turns with a format's way to write a call."""
    return TURNS.replace("CALL", call)


JSON = '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
TEMPLATES = {
    "hermes": template(f"<tool_call>\n{JSON}\n</tool_call>"),
    "llama": template("{{ '<|python_tag|>' }}" + JSON.replace('arguments"', 'parameters"')),
    "mistral": template(
        "{% if c.id | length != 9 %}{{ raise_exception('ids have 9 letters') }}{% endif %}"
        f"{{{{ '[TOOL_CALLS]' }}}}[{JSON}]"
    ),
    "mistral args": template(
        "{{ '[TOOL_CALLS]' + c.function.name + '[ARGS]' }}{{ c.function.arguments | tojson }}"
    ),
    "granite": template(f"{{{{ '<|tool_call|>' }}}}[{JSON}]"),
    # As SmolLM3: it describes calls, and writes those of earlier turns as content alone.
    "smollm3": TURNS.replace(
        "{% if m.tool_calls %}{% for c in m.tool_calls %}CALL{% endfor %}{% endif %}", ""
    )
    + "{% if tools %}within <tool_call></tool_call> XML tags{% endif %}",
    "qwen-coder": template(
        "<tool_call>\n<function={{ c.function.name }}>\n{% for k, v in c.function.arguments.items() %}"
        "<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"
    ),
}
ARGUMENTS = {"city": "Zürich", "days": 2}
RAW = json.dumps(ARGUMENTS, ensure_ascii=False)
CALLS = {
    "hermes": f'<tool_call>\n{{"name": "weather", "arguments": {RAW}}}\n</tool_call>',
    "llama": f'<|python_tag|>{{"name": "weather", "parameters": {RAW}}}',
    "mistral": f'[TOOL_CALLS][{{"name": "weather", "arguments": {RAW}}}]',
    "mistral args": f"[TOOL_CALLS]weather[ARGS]{RAW}",
    "granite": f'<|tool_call|>[{{"name": "weather", "arguments": {RAW}}}]',
    "smollm3": f'<tool_call>\n{{"name": "weather", "arguments": {RAW}}}\n</tool_call>',
    "qwen-coder": "<tool_call>\n<function=weather>\n<parameter=city>\nZürich\n</parameter>\n<parameter=days>\n2\n"
    "</parameter>\n</function>\n</tool_call>",
}
PROPERTIES = {"city": {"type": "string"}, "days": {"type": "integer"}}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Says what weather it is",
        "parameters": {"type": "object", "properties": PROPERTIES, "required": ["city"]},
    },
}
CLOCK: Any = {"type": "function", "function": {"name": "clock"}}
ASKED: Any = {
    "model": "dictated", "messages": [{"role": "user", "content": "How is it in Zürich?"}], "tools": [WEATHER, CLOCK]
}  # fmt: skip


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_call_is_a_call_and_can_be_sent_back(name: str) -> None:
    """With its result: the model is shown its own call again, as it wrote it."""
    with dictated(TEMPLATES[name], "Let me look.\n" + CALLS[name], "Sunny.") as (server, model):
        client: Any = server.client()
        (choice,) = client.chat.completions.create(**ASKED).choices
        assert '"Says what weather it is"' in model.prompt()
        said = choice.message
        assert (said.content, choice.finish_reason) == ("Let me look.", "tool_calls")
        assert said.tool_calls is not None
        (made,) = said.tool_calls
        assert made.type == "function" and made.function.name == "weather"
        assert json.loads(made.function.arguments) == ARGUMENTS
        result = {"role": "tool", "tool_call_id": made.id, "content": "sun"}
        messages = [*ASKED["messages"], said.model_dump(), result]
        (after,) = client.chat.completions.create(**{**ASKED, "messages": messages}).choices
        assert (after.message.content, after.finish_reason, after.message.tool_calls) == (
            "Sunny.",
            "stop",
            None,
        )
        assert CALLS[name] in model.prompt() and f"<tool>sun#{made.id}" in model.prompt()


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_stream_is_put_together_by_the_client(name: str, size: int) -> None:
    text = "Let me look.\n" + CALLS[name]
    with dictated(TEMPLATES[name], text, text, size=size) as (server, _):
        client: Any = server.client()
        whole = client.chat.completions.create(**ASKED).choices[0].message
        with client.chat.completions.stream(**ASKED) as stream:
            events = [event.type for event in stream]
            (choice,) = stream.get_final_completion().choices
        assert whole.tool_calls is not None and choice.message.tool_calls is not None
        assert (
            choice.finish_reason == "tool_calls" and choice.message.content == whole.content == "Let me look."
        )
        (one,), (other,) = whole.tool_calls, choice.message.tool_calls
        assert one.type == other.type == "function"
        assert (other.function.name, other.function.arguments) == (one.function.name, one.function.arguments)
        assert other.id and other.id != one.id
        assert "tool_calls.function.arguments.done" in events
        if size == 1:
            assert events.count("tool_calls.function.arguments.delta") > 3
        again = [
            *ASKED["messages"],
            choice.message.model_dump(),
            {"role": "tool", "content": "x", "tool_call_id": other.id},
        ]
        assert (
            call(server, "POST", "/v1/chat/completions", {**ASKED, "messages": again, "max_tokens": 0})[0]
            == 422
        )
    with dictated(TEMPLATES[name], "Good.") as (server, model):
        client_of(server).chat.completions.create(**{**ASKED, "messages": again})
        assert CALLS[name] in model.prompt()


TWO = CALLS["hermes"] + '\n<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(
    ("parallel", "names"), [(None, ["weather", "clock"]), (True, ["weather", "clock"]), (False, ["weather"])]
)
def test_several_calls_unless_they_may_not_be_parallel(parallel: bool | None, names: list[str]) -> None:
    with dictated(TEMPLATES["hermes"], TWO, TWO, size=7) as (server, _):
        client: Any = server.client()
        asked = {**ASKED, "parallel_tool_calls": parallel}
        (choice,) = client.chat.completions.create(**asked).choices
        with client.chat.completions.stream(
            **ASKED, **({} if parallel is None else {"parallel_tool_calls": parallel})
        ) as stream:
            (streamed,) = stream.get_final_completion().choices
        for found in (choice, streamed):
            calls: Any = found.message.tool_calls
            assert [made.function.name for made in calls] == names
            assert found.finish_reason == "tool_calls" and found.message.content is None


def test_what_is_not_a_call_stays_content() -> None:
    broken = 'See <tool_call>{"name": "nothing", "arguments": {}}</tool_call>'
    with dictated(TEMPLATES["hermes"], broken, broken, CALLS["hermes"], CALLS["hermes"]) as (server, model):
        client: Any = server.client()
        (choice,) = client.chat.completions.create(**ASKED).choices
        assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (
            broken,
            None,
            "stop",
        )
        parts = list(client.chat.completions.create(**ASKED, stream=True))
        assert "".join(part.choices[0].delta.content or "" for part in parts) == broken
        for asked in ({**ASKED, "tool_choice": "none"}, {**ASKED, "tools": []}):
            (choice,) = client.chat.completions.create(**asked).choices
            assert (choice.message.content, choice.finish_reason) == (CALLS["hermes"], "stop")
            assert "weather it is" not in model.prompt()


def test_a_call_that_a_limit_cuts_off_is_content_and_in_a_stream_what_was_sent() -> None:
    with dictated(TEMPLATES["hermes"], CALLS["hermes"], CALLS["hermes"]) as (server, _):
        client: Any = server.client()
        asked = {**ASKED, "max_tokens": len(CALLS["hermes"]) - 20}
        (choice,) = client.chat.completions.create(**asked).choices
        assert choice.finish_reason == "length" and choice.message.tool_calls is None
        assert CALLS["hermes"].startswith(choice.message.content or "?")
        parts = [part.choices[0] for part in client.chat.completions.create(**asked, stream=True)]
        assert parts[-1].finish_reason == "length"
        sent = [
            made.function.arguments for part in parts for made in part.delta.tool_calls or () if made.function
        ]
        assert RAW.startswith("".join(text or "" for text in sent))


def test_allowed_tools_are_the_only_ones() -> None:
    allowed = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "clock"}}]},
    }
    with dictated(TEMPLATES["hermes"], CALLS["hermes"]) as (server, model):
        (choice,) = client_of(server).chat.completions.create(**ASKED, tool_choice=allowed).choices
        assert choice.message.tool_calls is None and choice.message.content == CALLS["hermes"]
        assert "clock" in model.prompt() and "weather it is" not in model.prompt()


NAMED = {"type": "function", "function": {"name": "weather"}}
STRICT = {"type": "function", "function": {**WEATHER["function"], "strict": True}}


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"tool_choice": "required"}, 400, "prescribe the form of the answer"),
        ({"tool_choice": NAMED}, 400, "prescribe the form of the answer"),
        ({"tools": [STRICT]}, 400, "prescribe the form of the answer"),
        ({"response_format": {"type": "json_object"}}, 400, "tools and a form of the answer are both given"),
        ({"tool_choice": "required", "tools": None}, 400, "no tools are given"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, 400, "not among the tools"),
        ({"tools": [WEATHER, WEATHER]}, 400, "two tools have the name 'weather'"),
        ({"tools": [WEATHER] * 129}, 422, "tools"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, 422, "tools of other kinds are not supported"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, 422, "tools"),
        ({"tool_choice": "maybe"}, 422, "tool_choice"),
        ({"functions": [{"name": "x"}]}, 422, "deprecated: use tools"),
        ({"messages": [{"role": "assistant", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "clock", "arguments": "[1]"}}]}]}, 400,
         "message 0: tool_calls is not a list of calls"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(fields: dict[str, Any], status: int, words: str) -> None:
    with dictated(TEMPLATES["hermes"]) as (server, _):
        answer = call(server, "POST", "/v1/chat/completions", {**ASKED, **fields})
        assert words in require_error(answer, status)["message"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ messages[0].content }}", "takes no tools"),
        ("{{ tools }}{{ messages[0].content }}", "the formats known here are"),
    ],
)
def test_a_template_without_tools_or_with_unknown_calls_takes_none(source: str, words: str) -> None:
    with dictated(source, "Well.") as (server, _):
        assert words in require_error(call(server, "POST", "/v1/chat/completions", ASKED), 400)["message"]
        asked = {**ASKED, "tool_choice": "none"}
        assert call(server, "POST", "/v1/chat/completions", asked)[0] == 200


THINKING = TEMPLATES["hermes"] + "{# <think> </think> #}"
OPENED = THINKING.replace("<assistant>", "<assistant><think>\\n").replace(
    "\\n{% endif %}", "{{ '\\n' }}{% endif %}"
)
MAGISTRAL = TEMPLATES["mistral"] + "{# [THINK] [/THINK] #}"


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize(
    ("source", "text"),
    [
        (THINKING, "\n<think>\nIs it < 3?\n\n</think>\n\nYes.\n" + CALLS["hermes"]),
        (OPENED, "Is it < 3?\n</think>Yes." + CALLS["hermes"]),
        (MAGISTRAL, "[THINK]Is it < 3?[/THINK] Yes." + CALLS["mistral"]),
    ],
)
def test_reasoning_is_kept_apart(source: str, text: str, size: int) -> None:
    with dictated(source, text, text, "Fine.", size=size) as (server, model):
        client: Any = server.client()
        asked = {**ASKED, "stream_options": {"include_usage": True}}
        whole = client.chat.completions.create(**ASKED)
        said: Any = whole.choices[0].message
        assert (said.reasoning_content, said.content) == ("Is it < 3?", "Yes.")
        assert [made.function.name for made in said.tool_calls] == ["weather"]
        assert whole.usage is not None and whole.usage.completion_tokens_details is not None
        counted = len(text.encode()[: text.encode().index(b"Yes.")].rstrip())
        thought = whole.usage.completion_tokens_details.reasoning_tokens
        assert thought == counted if source != MAGISTRAL else thought == len("Is it < 3?") + 2
        with client.chat.completions.stream(**asked) as stream:
            chunks = [event.chunk for event in stream if event.type == "chunk"]
            final: Any = stream.get_final_completion().choices[0].message
        reasoned = [part.choices[0].delta.model_extra or {} for part in chunks if part.choices]
        assert "".join(part.get("reasoning_content", "") for part in reasoned) == "Is it < 3?"
        assert final.content == "Yes." and chunks[-1].usage == whole.usage
        client_of(server).chat.completions.create(
            **{**ASKED, "messages": [*ASKED["messages"], said.model_dump()]}
        )
        assert "(Is it < 3?)" in model.prompt()


def test_reasoning_without_an_end_is_no_content_and_text_without_marks_no_reasoning() -> None:
    answers = ("<think>On and on", "Yes <think>no</think>", "</think>", "<thin")
    with dictated(THINKING, *answers, *answers) as (server, _):
        found = []
        for _ in answers:
            message: Any = client_of(server).chat.completions.create(**ASKED).choices[0].message
            found.append((getattr(message, "reasoning_content", None), message.content))
        assert found == [("On and on", ""), (None, answers[1]), (None, answers[2]), (None, answers[3])]


def test_refusals_are_the_clients_own() -> None:
    with dictated(TEMPLATES["hermes"]) as (server, _), pytest.raises(openai.BadRequestError):
        client_of(server).chat.completions.create(**ASKED, tool_choice="required")
