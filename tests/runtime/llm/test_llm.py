"""`LLM`: the answers of sessions, in the shape users of vLLM know; every other option is refused by name."""

import asyncio
import gc
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessage

from specruntime import (
    LLM,
    AsyncLLM,
    BackendMissing,
    CapacityExceeded,
    EmptyPrompt,
    InvalidArgument,
    RequestOutput,
    SamplingParams,
    complete,
    open_bundle,
)
from specruntime.llm.engine import GROUP

PROMPTS = ["abcabcabc", "the quick brown fox", "0 1 2 3 4 5"]
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=20, ignore_eos=True, logprobs=2)


@pytest.fixture(scope="module")
def llm(tiny_bundle: Path) -> Iterator[LLM]:
    with LLM(tiny_bundle, max_num_seqs=2, verify=False) as opened:
        yield opened


def test_answers_have_the_shape_and_the_content(llm: LLM, tiny_bundle: Path) -> None:
    outputs = llm.generate(PROMPTS, PARAMS)
    with open_bundle(tiny_bundle, verify=False) as bundle:
        codec = bundle.tokenizer
        assert codec is not None
        for prompt, output in zip(PROMPTS, outputs, strict=True):
            ids = codec.encode(prompt)
            expected = complete(bundle.new_session(speculate=False), ids, PARAMS, codec)
            (answer,) = output.outputs
            assert (output.prompt, output.prompt_token_ids, output.finished) == (prompt, ids, True)
            assert (answer.text, tuple(answer.token_ids)) == (expected.text, expected.token_ids)
            assert (answer.index, answer.finish_reason) == (0, "length")
            assert answer.logprobs is not None and expected.logprobs is not None
            assert len(answer.logprobs) == 20
            for mapping, entry in zip(answer.logprobs, expected.logprobs, strict=True):
                assert mapping[entry.token].logprob == pytest.approx(entry.logprob, abs=1e-4)
                assert [mapping[token].rank for token, _ in entry.top] == [1, 2]
                assert mapping[entry.token].decoded_token == codec.token_text(entry.token)
            assert answer.cumulative_logprob == pytest.approx(
                sum(entry.logprob for entry in expected.logprobs), abs=1e-3
            )
            assert output.metrics is not None and output.metrics.tokens == 20
    assert [output.request_id for output in outputs] == sorted({output.request_id for output in outputs})


def test_prompts_are_texts_ids_or_mappings(llm: LLM) -> None:
    text = PROMPTS[0]
    (of_text,) = llm.generate(text, PARAMS)
    ids = of_text.prompt_token_ids
    forms: list[Any] = [ids, [ids], {"prompt": text}, [{"prompt_token_ids": ids}], [text]]
    for form in forms:
        (output,) = llm.generate(form, PARAMS)
        assert output.outputs[0].token_ids == of_text.outputs[0].token_ids, form
    assert llm.generate([], PARAMS) == []


def test_each_prompt_may_have_its_own_options(llm: LLM) -> None:
    lengths = [SamplingParams(max_tokens=count, ignore_eos=True) for count in (3, 5, 7)]
    outputs = llm.generate(PROMPTS, lengths)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [3, 5, 7]
    with pytest.raises(InvalidArgument, match="2 sampling parameters for 3 prompts"):
        llm.generate(PROMPTS, lengths[:2])


def test_streams_add_up_to_the_answer(llm: LLM) -> None:
    (whole,) = llm.generate(PROMPTS[0], PARAMS)
    deltas = list(llm.stream(PROMPTS[0], PARAMS))
    assert [token for delta in deltas for token in delta.tokens] == whole.outputs[0].token_ids
    assert "".join(delta.text for delta in deltas) == whole.outputs[0].text
    left = llm.stream(PROMPTS[0], PARAMS)
    next(left)
    left.close()
    assert llm.generate(PROMPTS[0], PARAMS)[0].outputs == whole.outputs


def test_without_a_seed_equal_prompts_get_answers_of_their_own(llm: LLM) -> None:
    fresh = SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True)
    answers = [output.outputs[0] for _ in range(2) for output in llm.generate(PROMPTS[:1] * 2, fresh)]
    assert len({answer.seed for answer in answers}) == len({tuple(a.token_ids) for a in answers}) == 4
    given = [replace(fresh, seed=answer.seed) for answer in answers]
    again = llm.generate(PROMPTS[:1] * 4, given)
    assert [output.outputs[0] for output in again] == answers
    stream = llm.stream(PROMPTS[0], fresh)
    tokens = [token for delta in stream for token in delta.tokens]
    (repeated,) = llm.generate(PROMPTS[0], replace(fresh, seed=stream.seed))
    assert repeated.outputs[0].token_ids == tokens


def test_a_progress_bar_counts_the_answers(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    class Bar:
        """Stands in for tqdm."""

        def __init__(self, **options: Any) -> None:
            self.total, self.done, self.closed = options["total"], 0, False
            bars.append(self)

        def update(self, count: int) -> None:
            self.done += count

        def close(self) -> None:
            self.closed = True

    bars: list[Bar] = []
    short = SamplingParams(max_tokens=3)
    plain = llm.generate(PROMPTS, short, use_tqdm=False)
    assert llm.generate(PROMPTS, short)[0].outputs == plain[0].outputs
    assert capsys.readouterr().err == ""
    assert [o.outputs for o in llm.generate(PROMPTS, short, use_tqdm=Bar)] == [o.outputs for o in plain]
    llm.chat([[{"role": "user", "content": "hi"}]] * 2, short, use_tqdm=Bar)
    assert [(bar.total, bar.done, bar.closed) for bar in bars] == [(3, 3, True), (2, 2, True)]
    llm.generate(PROMPTS, short, use_tqdm=True)
    assert "3/3" in capsys.readouterr().err
    with pytest.raises(InvalidArgument, match="use_tqdm is 'yes', expected True, False or a callable"):
        llm.generate(PROMPTS, short, use_tqdm="yes")  # type: ignore[arg-type]


def test_arguments_of_vllm_pass_where_they_change_nothing_and_others_are_refused_by_name(llm: LLM) -> None:
    """As in vLLM's signatures of `LLM.generate` and `LLM.chat`, with their defaults."""
    short = SamplingParams(max_tokens=3)
    plain = llm.generate(PROMPTS, short)
    given = llm.generate(PROMPTS, short, lora_request=None, priority=None, tokenization_kwargs=None)
    assert [output.outputs for output in given] == [output.outputs for output in plain]
    chat = [{"role": "user", "content": "hi"}]
    defaults: dict[str, Any] = {
        "lora_request": None,
        "chat_template": None,
        "chat_template_content_format": "auto",
        "add_generation_prompt": True,
        "continue_final_message": False,
        "tools": None,
        "chat_template_kwargs": None,
        "mm_processor_kwargs": None,
    }
    assert llm.chat(chat, short, **defaults)[0].outputs == llm.chat(chat, short)[0].outputs
    for name, value in {
        "lora_request": "x",
        "priority": 1,
        "chat_template_kwargs": {"x": 1},
        "add_generation_prompt": False,
    }.items():
        asked: dict[str, Any] = {name: value}
        with pytest.raises(InvalidArgument, match=f"{name} is .*expected .*not supported here"):
            llm.chat(chat, short, **asked)
    with pytest.raises(InvalidArgument, match=r"prioriti is not an argument, .*did you mean 'priority'"):
        llm.generate(PROMPTS, short, prioriti=0)


def test_a_bar_without_its_library_is_refused(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(BackendMissing, match="pip install tqdm"):
        llm.generate(PROMPTS, PARAMS, use_tqdm=True)


def test_the_async_variant_grows_one_output(llm: LLM, tiny_bundle: Path) -> None:
    (whole,) = llm.generate(PROMPTS[0], PARAMS)

    async def main() -> tuple[list[int], RequestOutput]:
        async with AsyncLLM(tiny_bundle, verify=False) as served:
            lengths = []
            async for output in served.generate(PROMPTS[0], PARAMS, request_id="mine"):
                lengths.append(len(output.outputs[0].token_ids))
            return lengths, output

    lengths, output = asyncio.run(main())
    assert lengths == sorted(set(lengths)) and len(lengths) > 1
    assert (output.request_id, output.finished) == ("mine", True)
    assert output.outputs == whole.outputs


def test_what_cannot_be_answered_is_refused_before_any_answer(llm: LLM) -> None:
    cases: list[tuple[Any, type[Exception]]] = [
        ("", EmptyPrompt),
        ([5000], InvalidArgument),
        ("a" * 300, CapacityExceeded),
        ({"promt": "x"}, InvalidArgument),
        ({"prompt": "x", "prompt_token_ids": [1]}, InvalidArgument),
        (3.5, TypeError),
    ]
    for prompt, error in cases:
        with pytest.raises(error):
            llm.generate([PROMPTS[0], prompt] if prompt != 3.5 else prompt, PARAMS)
    with pytest.raises(TypeError, match="the prompts are a float, expected a text, a list of token ids, or"):
        llm.generate(3.5)  # type: ignore[arg-type]
    for params in ({"max_tokens": 3}, [{"max_tokens": 3}], ["max_tokens"]):
        with pytest.raises(InvalidArgument, match="expected SamplingParams"):
            llm.generate(["x"], params)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="message 0: role is None, expected a text"):
        llm.chat([{"content": "no role"}])


def test_conversations_are_rendered_by_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    codec = llm.tokenizer
    assert codec is not None
    expected = llm.generate(codec.chat(messages), PARAMS)[0].outputs
    assert [output.outputs for output in llm.chat([messages, messages], PARAMS)] == [expected, expected]
    assert llm.chat(messages, PARAMS)[0].outputs == expected
    streamed = [token for delta in llm.stream_chat(messages, PARAMS) for token in delta.tokens]
    assert streamed == expected[0].token_ids


def test_messages_of_the_openai_client_are_read_as_they_are_dumped(tiny_bundle: Path, tmp_path: Path) -> None:
    """With a template that, as many do, takes a field that is there for one that was given."""
    bundle = tmp_path / "copy.bundle"
    shutil.copytree(tiny_bundle, bundle)
    name = json.loads((bundle / "manifest.json").read_text())["tokenizer"]["chat_template"]
    size = (bundle / name).stat().st_size  # which is checked without hashes too
    template = (
        "{% for m in messages %}{% if m.tool_calls is defined %}{{ m.tool_calls | length }}{% endif %}"
        "{{ m.role }}: {{ m.content }}{% endfor %}"
    )
    (bundle / name).write_text(template.ljust(size))
    said = ChatCompletionMessage(role="assistant", content="abc").model_dump()
    assert said["tool_calls"] is None
    with LLM(bundle, verify=False) as llm:
        short = [{"role": "assistant", "content": "abc"}]
        assert llm.chat([said], PARAMS)[0].prompt_token_ids == llm.chat(short, PARAMS)[0].prompt_token_ids


def test_a_bundle_without_tokenizer_takes_ids(tiny_bundle: Path) -> None:
    with LLM(tiny_bundle, verify=False) as opened:
        opened.bundle.__dict__["tokenizer"] = None
        (output,) = opened.generate([97, 98], SamplingParams(max_tokens=3, logprobs=1))
        assert output.prompt is None and output.outputs[0].logprobs is not None
        assert all(entry.decoded_token is None for entry in output.outputs[0].logprobs[0].values())
        with pytest.raises(InvalidArgument, match="no tokenizer"):
            opened.generate("text")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_num_seq": 2}, "did you mean 'max_num_seqs'"),
        ({"tensor_parallel_size": 2}, "LLM has no option 'tensor_parallel_size', allowed: "),
        ({"dtype": "float16"}, "dtype describes a bundle to be built"),
        ({"speculative_config": {}}, "is one already: leave it out"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0, expected at least 1"),
    ],
)
def test_other_options_are_refused(tiny_bundle: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        LLM(tiny_bundle, **options)


def test_without_a_builder_the_cure_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_installed(group: str) -> list[object]:
        assert group == GROUP
        return []

    monkeypatch.setattr("specruntime.llm.engine.entry_points", none_installed)
    with pytest.raises(BackendMissing, match="install specexport"):
        LLM(tmp_path)


def test_an_llm_that_is_dropped_frees_its_engine(tiny_bundle: Path) -> None:
    dropped = LLM(tiny_bundle, verify=False)
    bundle = dropped.bundle
    del dropped
    gc.collect()
    with pytest.raises(Exception, match="closed"):
        bundle.new_session()
