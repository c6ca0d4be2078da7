"""Every format's parser finds the same content and calls however the text is split; what is not a call is content."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specruntime.tools.events import Arguments, CallBegun, CallBroken, CallEnded, Content, Event, gather
from specruntime.tools.formats import FORMATS, Format, format_of
from specruntime.tools.json_scanner import NotJson, ObjectScanner
from specruntime.tools.parser import Tools

TOOLS: Tools = {
    "weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "now": {},
}
BY_NAME = {each.name: each for each in reversed(FORMATS)}
PARIS: dict[str, Any] = {"city": 'Paris "é" }]', "days": 3}
RAW = json.dumps(PARIS, ensure_ascii=False)
Found = tuple[str, list[tuple[str, Any]]]


def parsed(format: Format, pieces: list[str], **options: Any) -> list[Event]:
    parser = format.parser(TOOLS, **options)
    events = [event for piece in pieces for event in parser.push(piece)]
    return [*events, *parser.finish()]


def found(events: list[Event]) -> Found:
    content, calls = gather(events)
    return content, [(call.name, json.loads(call.arguments)) for call in calls]


def joined(events: list[Event]) -> list[tuple[Any, ...]]:
    """Events with neighbours of a kind put together, without the ids, which are random."""
    together: list[tuple[Any, ...]] = []
    for event in events:
        match event:
            case Content(text):
                entry: tuple[Any, ...] = ("content", text)
            case Arguments(index, text):
                entry = (f"arguments {index}", text)
            case CallBegun(index, _, name):
                entry = ("begun", index, name)
            case CallEnded(index) | CallBroken(index):
                entry = (type(event).__name__, index, getattr(event, "text", ""))
        if together and len(entry) == 2 and together[-1][0] == entry[0]:
            together[-1] = (entry[0], together[-1][1] + entry[1])
        else:
            together.append(entry)
    return together


SEE = "Let me see."
ONE: list[tuple[str, Any]] = [("weather", PARIS)]
TWO: list[tuple[str, Any]] = [("weather", PARIS), ("now", {})]
BOTH = f'{{"name": "weather", "arguments": {RAW}}}, {{"name": "now", "arguments": {{}}}}'
LLAMA = f'{{"name": "weather", "parameters": {RAW}}}'
XML = '<function=weather>\n<parameter=city>\nParis "é" }]\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>'

# Format, text, content, calls.
ANSWERS: list[tuple[str, str, str, list[tuple[str, Any]]]] = [
    ("hermes", "Hello <b>, 2 < 3.\n", "Hello <b>, 2 < 3.\n", []),
    ("hermes", f'<tool_call>\n{{"name": "weather", "arguments": {RAW}}}\n</tool_call>', "", ONE),
    ("hermes", f'Let me see.\n\n<tool_call>{{"arguments": {RAW}, "name": "weather"}}</tool_call>\n', SEE, ONE),
    (
        "hermes",
        f'\n<tool_call>{{"name": "weather", "arguments": {RAW}}}</tool_call>\n<tool_call>{{"name":"now"}}</tool_call>',
        "",
        TWO,
    ),
    ("hermes", f'<tool_call>[{BOTH}]</tool_call> Done.', " Done.", TWO),
    ("hermes", f'<tool_call>{{"name": "weather", "arguments": {json.dumps(RAW)}}}', "", ONE),
    ("hermes", '<tool_call>{"name": "now", "parameters": {"a": [1, -2.5e3, true, null, {}]}}</tool_call>', "",
     [("now", {"a": [1, -2500.0, True, None, {}]})]),
    ("granite", f"<|tool_call|>[{BOTH}]", "", TWO),
    ("granite", f'I call it: <function_call> {{"name": "weather", "arguments": {RAW}}}', "I call it:", ONE),
    ("granite", f"<|tool_call|>[{BOTH}]<|/tool_call|>", "", TWO),
    ("llama", LLAMA, "", ONE),
    ("llama", f' <|python_tag|>{LLAMA}; {{"name": "now", "parameters": {{}}}}', "", TWO),
    ("llama", f"See: {LLAMA}", f"See: {LLAMA}", []),
    ("llama", f"See: <|python_tag|>{LLAMA}", "See:", ONE),
    ("mistral", f"[TOOL_CALLS] [{BOTH}]", "", TWO),
    ("mistral", f"Well.[TOOL_CALLS]weather[ARGS]{RAW}[TOOL_CALLS]now{{}}", "Well.", TWO),
    ("mistral", f"[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS] {RAW}", "", ONE),
    ("qwen-coder", f"Fine\n<tool_call>\n{XML}\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
     "Fine", TWO),
]  # fmt: skip

# What is not a call, in its format; all of it is content.
BROKEN: list[tuple[str, str]] = [
    ("hermes", "<tool_call>"),
    ("hermes", "<tool_ca"),
    ("hermes", "see </tool_call>"),
    ("hermes", "<tool_call>weather(Paris)</tool_call> "),
    ("hermes", '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "weather", "arguments": "Paris"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "other", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "Par'),
    ("hermes", 'Text <tool_call>{"name": "weather", "arguments": {"city": Paris}}</tool_call> text'),
    ("hermes", '<tool_call>{"name": 3, "arguments": {}}'),
    ("hermes", '<tool_call>{"arguments": {}}'),
    ("hermes", '<tool_call>{"name": "now", "arguments": {}, "parameters": {}}'),
    ("hermes", "<tool_call>[]</tool_call>"),
    ("hermes", '<tool_call>{"name": "now", "name": "now"}'),
    ("granite", "<|tool_call|> none"),
    ("llama", '{"temperature": 3}'),
    ("llama", '<|python_tag|>search.call(query="x")'),
    ("mistral", "[TOOL_CALLS]other[ARGS]{}"),
    ("mistral", "[TOOL_CALLS]weather[RESULT]{}"),
    ("mistral", "[TOOL_CALLS]weather[ARGS]none"),
    ("mistral", "[TOOL_CALLS]" + "x" * 300),
    ("qwen-coder", "<tool_call>\n<function=other>\n</function>"),
    ("qwen-coder", "<tool_call>\n<function=weather>\n<parameter=city>\nParis"),
    ("qwen-coder", "<tool_call>\n<function=weather>\nParis"),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), ANSWERS)
def test_content_and_calls(name: str, text: str, content: str, calls: list[tuple[str, Any]]) -> None:
    assert found(parsed(BY_NAME[name], [text])) == (content, calls)


@pytest.mark.parametrize(("name", "text"), BROKEN)
def test_what_is_not_a_call_is_content(name: str, text: str) -> None:
    assert found(parsed(BY_NAME[name], [text])) == (text, [])


@pytest.mark.parametrize(("name", "text"), [*(each[:2] for each in ANSWERS), *BROKEN])
def test_a_split_at_every_character_changes_nothing(name: str, text: str) -> None:
    whole = joined(parsed(BY_NAME[name], [text]))
    for place in range(len(text) + 1):
        assert joined(parsed(BY_NAME[name], [text[:place], text[place:]])) == whole
    assert joined(parsed(BY_NAME[name], list(text))) == whole


@given(
    format=st.sampled_from(sorted(BY_NAME)),
    parts=st.lists(
        st.sampled_from([*(each[1] for each in ANSWERS), *(each[1] for each in BROKEN), " ", "x", "{", "<"])
    ),
    size=st.integers(1, 9),
)
def test_any_text_is_the_same_in_any_pieces(format: str, parts: list[str], size: int) -> None:
    """Nothing is lost either: without white space, content and calls are all of what is neither."""
    text = "".join(parts)
    whole = parsed(BY_NAME[format], [text])
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    assert joined(parsed(BY_NAME[format], pieces)) == joined(whole)
    if not gather(whole)[1]:
        assert gather(whole)[0] == text


def test_arguments_come_while_they_grow() -> None:
    parser = BY_NAME["hermes"].parser(TOOLS)
    assert parser.push('Now: <tool_call>{"name": "weather", "argu') == [Content("Now:")]
    begun, first = parser.push('ments": {"city": "Pa')
    assert isinstance(begun, CallBegun) and (begun.index, begun.name) == (0, "weather")
    assert first == Arguments(0, '{"city": "Pa')
    assert parser.push("ris") == [Arguments(0, "ris")]
    assert parser.push('"}}') == [Arguments(0, '"}'), CallEnded(0)]
    assert parser.push("</tool_call>\n") == parser.finish() == []


def test_a_call_that_breaks_after_it_began_says_so() -> None:
    """In a stream its arguments have been sent; the call after it has the next index."""
    events = parsed(
        BY_NAME["hermes"],
        ['<tool_call>{"name": "now", "arguments": {"a": !', '<tool_call>{"name": "now", "arguments": {}}'],
    )
    kinds = [(type(event).__name__, getattr(event, "index", None)) for event in events]
    assert kinds == [
        ("CallBegun", 0), ("Arguments", 0), ("CallBroken", 0), ("Content", None), ("CallBegun", 1), ("Arguments", 1),
        ("CallEnded", 1),
    ]  # fmt: skip
    assert found(events) == ('<tool_call>{"name": "now", "arguments": {"a": !', [("now", {})])


@pytest.mark.parametrize(("name", "text", "content", "calls"), [each for each in ANSWERS if len(each[3]) > 1])
def test_without_parallel_calls_the_first_is_the_only_one(
    name: str, text: str, content: str, calls: list[tuple[str, Any]]
) -> None:
    for pieces in ([text], list(text)):
        events = parsed(BY_NAME[name], pieces, parallel=False)
        before = "" if content == " Done." else content
        assert found(events) == (before, calls[:1])


def test_ids_are_of_their_own_and_such_as_templates_take() -> None:
    for name, length in (("mistral", 9), ("hermes", 29)):
        opener = {"mistral": "[TOOL_CALLS]", "hermes": "<tool_call>"}[name]
        _, calls = gather(parsed(BY_NAME[name], [f"{opener}[{BOTH}]"]))
        assert len({call.id for call in calls}) == 2 and {len(call.id) for call in calls} == {length}
        assert all(call.id.replace("_", "").isalnum() for call in calls)


@pytest.mark.parametrize("format", [each for each in FORMATS if each.name != "qwen-coder"])
def test_what_a_format_writes_it_reads(format: Format) -> None:
    text = format.write([("weather", PARIS)])
    assert found(parsed(format, [text])) == ("", ONE)
    if format.name != "llama":
        assert found(parsed(format, [format.write([("weather", PARIS), ("now", {})])])) == ("", TWO)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("... return a json object within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{...}", "hermes"),
        ('{{- \'<tool_call>\\n{"name": "\' }}{{ tool_call.name }}', "hermes"),
        ("<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>", "qwen-coder"),
        ('{{- "[TOOL_CALLS] [" }}{%- for tool_call in tool_calls %}', "mistral"),
        ("respond with <|tool_call|> followed by a JSON list of tools used", "granite"),
        ('please output "<function_call> {...}"', "granite"),
        ('Respond in the format {"name": function name, "parameters": dictionary of argument name', "llama"),
        ("{{- '<|python_tag|>' + tool_call.name }}", "llama"),
        ("{% for message in messages %}{{ message.content }}{% endfor %}", None),
    ],
)
def test_the_format_is_recognised_from_the_template(template: str, name: str | None) -> None:
    format = format_of(template)
    assert (None if format is None else format.name) == name


@given(st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20,
), st.booleans(), st.sampled_from([None, 1]))  # fmt: skip
def test_the_scanner_takes_all_json_to_its_end(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps({"name": "x", "value": value}, ensure_ascii=ascii_only, indent=indent)
    scanner = ObjectScanner()
    for place, character in enumerate(text):
        assert not scanner.done, place
        scanner.feed(character)
    assert scanner.done
    assert {key: json.loads(member) for key, member in scanner.members.items()} == json.loads(text)


@given(st.text(alphabet='{}[]",:\\u0a1-.etrufalsn \n', max_size=24))
def test_the_scanner_takes_nothing_else(text: str) -> None:
    text = "{" + text
    scanner, end = ObjectScanner(), 0
    try:
        for end, character in enumerate(text, start=1):  # noqa: B007
            scanner.feed(character)
            if scanner.done:
                break
    except NotJson:
        with pytest.raises(ValueError):
            json.loads(text)
        return
    if scanner.done:
        json.loads(text[:end])


REFUSED = (
    '{"a": 01', '{"a": +', '{"a": 1.}', '{"a": tru}', '{"a": "\n', '{"a": "\\x', "{a", '{"a": [1,]', '{"a" 1',
    '{"a": 1 2', "{,", '{"a": 1,}', "{}x", '{"a": ' + "[" * 300,
)  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_the_scanner_refuses_at_the_first_character_that_cannot_follow(text: str) -> None:
    scanner = ObjectScanner()
    for character in text[:-1] if len(text) < 300 else text[:100]:
        scanner.feed(character)
    with pytest.raises(NotJson):
        for character in text[-1] if len(text) < 300 else text[100:]:
            scanner.feed(character)
