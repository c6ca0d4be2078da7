"""Chats with tools and reasoning in `LLM`, and several answers to a prompt."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specruntime import LLM, AsyncLLM, InvalidArgument, SamplingParams
from specruntime.chat.reply import ReplyStyle
from specruntime.generation import Delta
from specruntime.llm.outputs import new_output
from specruntime.serving.events import Delivery, Figures
from specruntime.tools.formats import HermesParser

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.tool_calls %}{% for c in m.tool_calls %}"
    "<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endif %}<|end|>{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}<|assistant|><think>\n{# </think> #}"
)
CHAT: list[Any] = [{"role": "user", "content": "the quick brown fox"}]
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
SAMPLED = SamplingParams(temperature=0.9, seed=11, max_tokens=16, ignore_eos=True)


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny bundle with a template that has tools and reasoning."""
    copy = tmp_path_factory.mktemp("chat") / "thinking.bundle"
    shutil.copytree(tiny_bundle, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    name = manifest["tokenizer"]["chat_template"]
    (copy / name).write_text(TEMPLATE)
    manifest["files"][name]["bytes"] = len(TEMPLATE)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return copy


@pytest.fixture(scope="module")
def llm(bundle: Path) -> Iterator[LLM]:
    with LLM(bundle, max_num_seqs=3, verify=False) as opened:
        yield opened


def test_tools_are_in_the_prompt_and_calls_of_earlier_turns_too(llm: LLM) -> None:
    function = {"name": "clock", "arguments": '{"zone": "\\u00e9"}'}
    calls = [{"id": "1", "type": "function", "function": function}]
    called = {"role": "assistant", "content": "", "tool_calls": calls}
    messages = [*CHAT, called, {"role": "tool", "tool_call_id": "1", "content": "noon"}]
    short = SamplingParams(max_tokens=2)
    (output,) = llm.chat(messages, short, tools=[TOOL])
    assert llm.tokenizer is not None
    text = llm.tokenizer.decode(output.prompt_token_ids)
    assert '<tool_call>{"name": "clock", "arguments": {"zone": "é"}}</tool_call>' in text
    assert '"parameters": {"type": "object"}' in text
    (without,) = llm.chat(messages, short, tools=[TOOL], tool_choice="none")
    assert "parameters" not in llm.tokenizer.decode(without.prompt_token_ids)
    stream = llm.stream_chat(messages, short, tools=[TOOL])
    assert "".join(delta.text for delta in stream) == output.outputs[0].text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tools": [TOOL], "tool_choice": "required"}, "prescribe the form"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "not among the tools",
        ),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "names no function"),
        ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice is maybe, expected"),
        ({"tools": "clock"}, "the tools are a str"),
        ({"tools": [{"name": "clock"}]}, "tool 0 is not a function"),
        ({"tools": [{"function": {"name": "clock", "parameters": []}}]}, "tool 0: parameters is a list"),
        ({"tools": [TOOL] * 2}, "two tools have the name 'clock'"),
        ({"tools": [{"function": {"name": str(i)}} for i in range(129)]}, "129 tools, expected at most 128"),
    ],
)
def test_offers_that_cannot_be_made_are_refused(llm: LLM, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        llm.chat(CHAT, SAMPLED, **arguments)


def test_a_budget_ends_the_reasoning_in_the_same_place_with_and_without_drafts(
    llm: LLM, bundle: Path
) -> None:
    params = replace(SAMPLED, thinking_token_budget=5, max_tokens=24)
    (output,) = llm.chat(CHAT, params)
    (answer,) = output.outputs
    assert llm.tokenizer is not None and answer.message is not None
    end = llm.tokenizer.encode("</think>")
    assert answer.token_ids[5 : 5 + len(end)] == end
    reasoning, content = answer.text.split("</think>", 1)
    assert answer.message["reasoning_content"] == reasoning.strip(" \n\t\r")
    assert answer.message["content"] == content.lstrip(" \n\t\r")
    (free,) = llm.chat(CHAT, replace(params, thinking_token_budget=None))[0].outputs
    assert free.token_ids[:5] == answer.token_ids[:5] and free.token_ids[5:13] != end
    with pytest.raises(InvalidArgument, match="thinking_token_budget needs the marks"):
        llm.generate("abc", params)


@pytest.mark.parametrize("seed", [11, 2**64 - 2, None])
def test_n_answers_are_those_of_the_seeds_that_follow_each_other(llm: LLM, seed: int | None) -> None:
    """More of them than slots."""
    (output,) = llm.generate("abcabcabc", replace(SAMPLED, n=5, seed=seed, logprobs=1))
    assert [answer.index for answer in output.outputs] == [0, 1, 2, 3, 4] and output.finished
    first = output.outputs[0].seed
    assert first is not None and seed in (first, None)
    for index, answer in enumerate(output.outputs):
        own = (first + index) % 2**64
        (alone,) = llm.generate("abcabcabc", replace(SAMPLED, seed=own, logprobs=1))[0].outputs
        assert answer.seed == own
        assert (answer.text, answer.token_ids) == (alone.text, alone.token_ids)
    assert len({answer.text for answer in output.outputs}) == 5


def test_greedy_answers_are_all_the_same(llm: LLM) -> None:
    (output,) = llm.generate("abcabcabc", SamplingParams(n=3, max_tokens=8))
    assert len({answer.text for answer in output.outputs}) == 1
    assert [answer.seed for answer in output.outputs] == [None] * 3


@pytest.mark.parametrize("mode", ["exact", "off"])
def test_n_answers_share_the_prompt(bundle: Path, mode: Any) -> None:
    """Counted in windows of prompts: also where requests share nothing."""
    prompt = "the quick brown fox jumps over the lazy dog, again and again, and so on " * 2
    with LLM(bundle, max_num_seqs=4, verify=False, prefix_caching=mode) as llm:
        (output,) = llm.generate(prompt, replace(SAMPLED, n=4))
        assert output.num_cached_tokens == 0
        cached = llm._scheduler.totals.cached_tokens
        assert cached >= 3 * (len(output.prompt_token_ids) - 2)
        llm.generate([prompt] * 4, SAMPLED)
        more = llm._scheduler.totals.cached_tokens - cached
        assert more == 0 if mode == "off" else more > 0


def test_each_prompt_has_its_answers(llm: LLM) -> None:
    outputs = llm.generate(["abc", "xyz"], [replace(SAMPLED, n=2), replace(SAMPLED, n=3)])
    assert [len(output.outputs) for output in outputs] == [2, 3]
    ended: list[int] = []

    class Bar:
        def __init__(self, total: int, desc: str) -> None:
            ended.append(-total)

        def update(self, count: int) -> None:
            ended.append(count)

        def close(self) -> None: ...

    llm.generate(["abc", "xyz"], replace(SAMPLED, n=2), use_tqdm=Bar)
    assert ended == [-4, 1, 1, 1, 1]


def test_a_stream_is_of_one_answer(llm: LLM) -> None:
    with pytest.raises(InvalidArgument, match="n is 2, expected 1: a stream is of one answer"):
        llm.stream("abc", replace(SAMPLED, n=2))


def test_a_session_gives_one_answer(llm: LLM) -> None:
    session = llm.bundle.new_session()
    session.append([1, 2, 3])
    with pytest.raises(InvalidArgument, match="n is 2, expected 1: a session gives one answer"):
        session.begin(SamplingParams(n=2))
    session.close()


def test_the_async_variant_grows_all_answers(bundle: Path, llm: LLM) -> None:
    async def run() -> Any:
        async with AsyncLLM(bundle, max_num_seqs=2, verify=False) as asynchronous:
            async for output in asynchronous.chat(CHAT, replace(SAMPLED, n=3), tools=[TOOL]):
                last = output
                assert output.finished == all(answer.finish_reason for answer in output.outputs)
        return last

    output = asyncio.run(run())
    assert output.finished and all(answer.message is not None for answer in output.outputs)
    (expected,) = llm.chat(CHAT, replace(SAMPLED, n=3), tools=[TOOL])
    assert output.outputs == expected.outputs


def test_the_message_of_an_answer_has_its_calls_and_can_be_sent_back(llm: LLM) -> None:
    style = ReplyStyle(("<think>", "</think>"), True, HermesParser, {"clock": {}})
    output = new_output("0", None, [1], style=style)
    text = 'why\n</think>\nLook: <tool_call>{"name": "clock", "arguments": {"a": 1}}</tool_call>'
    output.add(Delivery(Delta(text, (1,), None, "stop"), ("target",), Figures(1)), None)
    message = output.outputs[0].message
    assert message is not None and output.outputs[0].text == text
    assert (message["content"], message["reasoning_content"]) == ("Look:", "why")
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "clock", "arguments": '{"a": 1}'} and call["type"] == "function"
    (after,) = llm.chat([*CHAT, message], SamplingParams(max_tokens=1), tools=[TOOL])
    assert llm.tokenizer is not None
    assert '{"name": "clock", "arguments": {"a": 1}}' in llm.tokenizer.decode(after.prompt_token_ids)
