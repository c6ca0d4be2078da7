"""A chat template renders as in transformers: each construct of published templates, and each way to fail."""

from collections.abc import Mapping
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from specruntime.errors import BundleInvalid, InvalidArgument
from specruntime.text.chat_template import ChatTemplate

TOKENS: dict[str, Any] = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "image_token": "<image>",
}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one turn": [{"role": "user", "content": " 1 < 2 & \u00e9 \U0001f600\n"}],
    "system and turns": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a 'quoted' \"one\""},
        {"role": "assistant", "content": "<think>\nwhy\n</think>\n\nyes"},
        {"role": "user", "content": "b"},
    ],
    "ends with an answer": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "\nb\n"}],
    "reasoning": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "thinking": "why", "reasoning_content": None},
    ],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}],
    "nulls": [
        {"role": "user", "content": "a", "name": None, "tool_calls": None},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "f", "arguments": {"a": None}}}],
        },
        {"role": "tool", "content": "3"},
    ],
    "no content": [
        {"role": "user", "content": "a", "name": "Ann"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
    ],
    "a tool's result": [
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": {"b": 1, "a": "\u00e9"}}}],
        },
        {"role": "tool", "content": "3", "tool_call_id": "x"},
    ],
}
EACH = "{% for message in messages %}"
CONSTRUCTS = {
    "SmolLM3, Phi-4: generation": EACH
    + "{%- if message.role == 'assistant' -%}\n{% generation %}\n{{ '<a>' + message.content.lstrip('\\n') }}\n"
    "{% endgeneration %}\n{%- else %}{{ message.role }}{% endif %}\n{% endfor %}",
    "generation ends what is set in it": "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}"
    "{{ x }}",
    "generation between trimmed tags": EACH
    + "a {%- generation -%} {{ loop.index }} {%- endgeneration -%} b\n{% endfor %}",
    "tojson": "{{ messages | tojson }}|{{ messages[0] | tojson(indent=2) }}",
    "tojson with all arguments": EACH
    + "{{ message | tojson(ensure_ascii=False, separators=(',', ':'), sort_keys=True) }}\n{% endfor %}",
    "tojson by position": "{{ messages[0] | tojson(True, 4, [', ', ': '], True) }}",
    "tools and documents": "{{ tools is none }} {{ documents is none }} {{ tools is defined }}"
    "{% if tools %}T{% endif %}{% if not documents %}D{% endif %} {{ add_generation_prompt }}",
    "special tokens": "{{ bos_token }}{{ unk_token }}{{ image_token }} {{ pad_token is defined }}[{{ pad_token }}]",
    "undefined variables": "{{ date_string is defined }}{{ enable_thinking | default(true) }}{{ builtin_tools }}",
    "Qwen3: namespace, reverse, split": "{%- set ns = namespace(last=messages|length - 1, seen=false) %}"
    "{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}"
    "{%- if not ns.seen and message.role == 'user' and message.content is string %}{%- set ns.seen = true %}"
    "{%- set ns.last = index %}{%- endif %}{%- endfor %}{{ ns.last }}"
    + EACH
    + "{% if message.content is string %}{{ message.content.split('</think>')[-1].lstrip('\\n') }}{% endif %}"
    "{% endfor %}",
    "a name with an underscore": "{% set ns = namespace(a=1) %}{% set ns._b = 2 %}{{ ns.a }}",
    "a dunder at the namespace's making": "{% set ns = namespace(**{'__x': 1}) %}{{ ns }}",
    "namespace with self": "{% set ns = namespace(self=3) %}{{ ns.self }}",
    "dict": "{{ dict(a=1) }}{{ dict(messages[0]).role }}{{ dict.fromkeys(['a'], 2) }}",
    "dict reaches nothing else": "{{ dict.mro() }}",
    "loop controls": EACH
    + "{% if loop.first %}{% continue %}{% endif %}{{ message.role }}{% if loop.index > 2 %}{% break %}{% endif %}"
    "{% endfor %}",
    "Mistral: refusals of order": EACH
    + "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}"
    "{% endfor %}ok",
    "Llama 3.1: trimmed lines and sets": "{%- if not date_string is defined %}\n    {%- set date_string = '26 Jul' %}\n"
    "{%- endif %}\n{%- if messages[0]['role'] == 'system' %}\n    {%- set system = messages[0]['content']|trim %}\n"
    "    {%- set messages = messages[1:] %}\n{%- else %}\n    {%- set system = '' %}\n{%- endif %}\n"
    "{{- bos_token + system + date_string }}\n{%- for message in messages %}\n    {{- '<|' + message.role + '|>' }}\n"
    "{%- endfor %}\n",
    "blocks and comments keep no lines": "{# a #}\n  {% if true %}\n  x\n  {% endif %}\n  y\n",
    "macros": "{% macro show(m, n=1) %}{{ m.role * n }}{% endmacro %}"
    + EACH
    + "{{ show(message, n=2) }}{% endfor %}",
    "filters": "{{ messages | map(attribute='role') | join(',') }}{{ messages | selectattr('role', 'equalto', 'user') "
    "| list | length }}{{ messages | rejectattr('role', 'equalto', 'user') | list | length }}{{ 'a' | upper }}",
    "parts": EACH
    + "{% if message.content is string %}S{% else %}{% for part in message.content %}{{ part.type }}"
    "{{ part['text'] if 'text' in part }}{% endfor %}{% endif %}{% endfor %}",
    "tool calls": EACH
    + "{% if message.tool_calls %}{% for call in message.tool_calls %}{% for k, v in call.function.arguments.items() %}"
    "{{ k }}={{ v | string }}{% endfor %}{% endfor %}{% endif %}{{ message.get('name', '-') }}{% endfor %}",
    "reasoning": EACH
    + "{{ message.reasoning_content is defined }}{{ message.reasoning_content }}{{ message.thinking }}{% endfor %}",
    "a name that is null": EACH
    + "{{ message.role }}{% if message.name is defined %} named {{ message.name }}{% endif %}{% endfor %}",
    "the items of a message": EACH + "{{ message.items() | list }}{% endfor %}",
    "keys without a value": EACH + "{{ message.keys() | list | sort }}{% endfor %}",
    "set blocks, conditions, tests": "{% set x %}a{{ 1 + 1 }}{% endset %}{{ x }}{{ 'y' if x is string else 'n' }}"
    "{{ [1, 2] is iterable and {} is mapping }}{{ 'b' ~ 3 }}{{ none is none }}",
    "an undefined attribute": "{{ messages[0].nothing }}{{ messages[0].nothing.more }}",
    "an unsafe attribute": "{{ messages.__class__.__mro__ }}",
    "a change of the messages": "{{ messages.append(1) }}",
    "unicode and HTML": "{{ '<b>&' }}{{ messages[0].content | e }}\u2581",
}


def transformers_renders(source: str, messages: list[dict[str, Any]], *, opened: bool) -> str | None:
    """None where it raises."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    try:
        return str(
            tokenizer.apply_chat_template(
                messages, chat_template=source, add_generation_prompt=opened, tokenize=False, **TOKENS
            )
        )
    except Exception:  # a template may raise anything
        return None


def rendered(source: str, messages: list[dict[str, Any]], *, opened: bool) -> str | None:
    template = ChatTemplate(source, TOKENS)
    try:
        return template.render(messages, add_generation_prompt=opened)
    except InvalidArgument:
        return None


@pytest.mark.parametrize("source", list(CONSTRUCTS.values()), ids=list(CONSTRUCTS))
def test_constructs_of_published_templates_render_as_in_transformers(source: str) -> None:
    for name, messages in CONVERSATIONS.items():
        for opened in (True, False):
            expected = transformers_renders(source, messages, opened=opened)
            assert rendered(source, messages, opened=opened) == expected, name


def test_most_constructs_render_something() -> None:
    """A comparison of refusals alone would show nothing."""
    texts = [
        transformers_renders(source, CONVERSATIONS["one turn"], opened=True) for source in CONSTRUCTS.values()
    ]
    assert sum(text is not None for text in texts) > len(texts) * 3 // 4


@pytest.mark.parametrize(
    "guard",
    [
        "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}1999{% endif %}",
        "{% if strftime_now is not defined %}1999{% else %}{{ strftime_now('%Y') }}{% endif %}",
        "{{ strftime_now('%Y') if strftime_now else 1999 }}",
    ],
)
def test_a_template_that_asks_for_a_clock_falls_back(guard: str) -> None:
    assert rendered(guard, CONVERSATIONS["one turn"], opened=True) == "1999"


@pytest.mark.parametrize(
    ("call", "date"),
    [
        # SmolLM3 and Mistral Small 3, as published.
        (
            '{%- set today = strftime_now("%d %B %Y") -%}{{- "Today Date: " ~ today ~ \'\\n\' -}}',
            "26 July 2024",
        ),
        ('{%- set today = strftime_now("%Y-%m-%d") %}{{ today }}', "2024-07-26"),
        ("{% macro head() %}{{ strftime_now('%H:%M') }}{% endmacro %}{{ head() }}", "00:00"),
    ],
)
def test_a_template_that_calls_the_clock_gets_one_date_on_every_day(call: str, date: str) -> None:
    text = rendered(call, CONVERSATIONS["one turn"], opened=True)
    assert text is not None and date in text


def test_messages_need_a_role_alone() -> None:
    with pytest.raises(InvalidArgument, match=r"message 0: role is None, .*\['content'\]"):
        ChatTemplate("{{ messages }}", {}).render([{"content": "a"}])


def test_unknown_tags_are_refused_with_their_line() -> None:
    with pytest.raises(BundleInvalid, match=r"cannot be parsed, line 2: .*'nothing'"):
        ChatTemplate("a\n{% nothing %}", {})
    with pytest.raises(BundleInvalid, match="cannot be parsed"):
        ChatTemplate("{% generation %}a", {})


def test_the_messages_of_the_caller_stay_as_they_are() -> None:
    message: Mapping[str, Any] = {"role": "user", "content": "a", "reasoning": "b", "name": None}
    before = dict(message)
    ChatTemplate("{{ messages }}", {}).render([message])
    assert message == before
