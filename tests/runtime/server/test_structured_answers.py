"""Answers of a form over HTTP, by the official client: formats of the API, fields of vLLM, and what is refused."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema_rs
import openai
import pytest
from pydantic import BaseModel

from tests.runtime.server.conftest import Running

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "on": {"type": "boolean"}},
    "required": ["name", "on"],
    "additionalProperties": False,
}
CHAT: dict[str, Any] = {
    "model": "tiny-random",
    "messages": [{"role": "user", "content": "the quick brown fox"}],
    "max_tokens": 120,
    "temperature": 0,
}
PROMPT: dict[str, Any] = {
    "model": "tiny-random",
    "prompt": "the quick brown fox",
    "max_tokens": 120,
    "temperature": 0,
}


class Person(BaseModel):
    on: bool
    off: None


def text_of(server: Running, **extra: Any) -> str:
    answer = server.client().completions.create(**PROMPT, extra_body=extra)
    assert answer.choices[0].finish_reason == "stop"
    return str(answer.choices[0].text)


def test_a_schema_of_the_api(tiny_server: Running) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    whole = tiny_server.client().chat.completions.create(**CHAT, response_format=form)
    content = whole.choices[0].message.content
    assert content is not None and jsonschema_rs.is_valid(SCHEMA, json.loads(content))
    streamed = tiny_server.client().chat.completions.create(**CHAT, response_format=form, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices) == content


def test_the_parse_helper_of_the_client(tiny_server: Running) -> None:
    client = tiny_server.client()
    answer = client.chat.completions.parse(**CHAT, response_format=Person)
    message = answer.choices[0].message
    assert isinstance(message.parsed, Person)
    again = {**CHAT, "messages": [*CHAT["messages"], message.model_dump(), {"role": "user", "content": "x"}]}
    assert isinstance(
        client.chat.completions.parse(**again, response_format=Person).choices[0].message.parsed, Person
    )


def test_any_object(tiny_server: Running) -> None:
    options: Any = {**CHAT, "logit_bias": {"125": 60}}
    answer = tiny_server.client().chat.completions.create(**options, response_format={"type": "json_object"})
    assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)


def test_free_text_is_what_it_was(tiny_server: Running) -> None:
    client = tiny_server.client()
    plain = client.chat.completions.create(**CHAT)
    text = client.chat.completions.create(**CHAT, response_format={"type": "text"})
    assert text.choices[0].message.content == plain.choices[0].message.content


@pytest.mark.parametrize("speculate", [True, False])
def test_the_fields_of_vllm(tiny_server: Running, speculate: bool) -> None:
    extra = {"speculate": speculate}
    schema = json.dumps(SCHEMA)
    field: dict[str, Any]
    for field in ({"structured_outputs": {"json": SCHEMA}}, {"guided_json": SCHEMA}, {"guided_json": schema}):
        assert jsonschema_rs.is_valid(SCHEMA, json.loads(text_of(tiny_server, **field, **extra)))
    for field in ({"structured_outputs": {"regex": "[a-c]{4}"}}, {"guided_regex": "[a-c]{4}"}):
        assert re.fullmatch("[a-c]{4}", text_of(tiny_server, **field, **extra))
    for field in ({"structured_outputs": {"choice": ["on", "off"]}}, {"guided_choice": ["on", "off"]}):
        assert text_of(tiny_server, **field, **extra) in ("on", "off")
    assert text_of(tiny_server, guided_grammar='start: "a" "b"', **extra) == "ab"


def test_drafts_change_no_token(tiny_server: Running) -> None:
    for seed in range(4):
        texts = [
            tiny_server.client().completions.create(
                **{**PROMPT, "temperature": 1.0, "seed": seed},
                extra_body={"guided_json": SCHEMA, "speculate": speculate},
            ).choices[0].text
            for speculate in (True, False)
        ]  # fmt: skip
        assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "form",
    [
        {"guided_regex": "(a"},
        {"guided_regex": "a", "guided_choice": ["a"]},
        {"guided_regex": "a", "response_format": {"type": "json_object"}},
        {"structured_outputs": {"regex": "a", "choice": ["b"]}},
        {"structured_outputs": {}},
        {"guided_regex": "a", "guided_whitespace_pattern": " "},
        {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
        {"guided_json": "{nope"},
        {"guided_json": {"type": "array", "uniqueItems": True}},
        {"guided_choice": [f"choice {number}" for number in range(20_000)]},
        {"guided_regex": "(" * 20_000 + "a" + ")" * 20_000},
        {"guided_regex": "a", "ignore_eos": True},
    ],
)
def test_a_form_that_makes_no_sense_is_a_bad_request(tiny_server: Running, form: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        text_of(tiny_server, **form)
    assert len(caught.value.message) < 1000


@pytest.mark.parametrize(
    "form", [{"guided_regex": ""}, {"guided_choice": []}, {"structured_outputs": {"rexeg": "a"}}]
)
def test_a_form_of_another_shape_is_unprocessable(tiny_server: Running, form: dict[str, Any]) -> None:
    with pytest.raises(openai.UnprocessableEntityError):
        text_of(tiny_server, **form)


def test_a_dead_end_is_an_error_of_its_answer(tiny_server: Running) -> None:
    with pytest.raises(openai.BadRequestError, match="banned"):
        text_of(tiny_server, guided_choice=["on"], min_tokens=50)
    assert text_of(tiny_server, guided_choice=["on"]) == "on"


def test_many_streams_are_answered_or_refused_and_none_hangs(tiny_server: Running) -> None:
    def ask(number: int) -> str:
        field = {"guided_choice": [f"on {number}", f"off {number}"]}
        try:
            return text_of(tiny_server, **field)
        except openai.RateLimitError:
            return "refused"

    with ThreadPoolExecutor(100) as pool:
        found = list(pool.map(ask, range(200)))
    answered = [number for number, text in enumerate(found) if text != "refused"]
    assert answered and all(found[number] in (f"on {number}", f"off {number}") for number in answered)
    assert text_of(tiny_server, guided_choice=["on"]) == "on"
