"""`LLM`: one line from a bundle, or from checkpoints, to answers, with the names that users of vLLM know.

Owns how prompts and options become work, and nothing of how it is scheduled.
"""

import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.metadata import entry_points
from itertools import count
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np

from specruntime.bundle import LoadedBundle, open_bundle
from specruntime.chat import ChatPrompt, ReplyStyle, ToolOffer, chat_prompt, offered, require_alone
from specruntime.engines import EngineOptions
from specruntime.errors import BackendMissing, InvalidArgument
from specruntime.generation import Delta
from specruntime.llm.outputs import RequestOutput, new_output
from specruntime.llm.prompts import (
    Prompt,
    listed,
    no_params,
    one_each,
    prompt_ids,
    require_codec,
    require_neutral,
)
from specruntime.manifest.messages import one_of
from specruntime.manifest.schema import MANIFEST_NAME
from specruntime.sampling.params import SamplingParams, shown
from specruntime.serving import (
    AsyncStreams,
    PrefixCaching,
    Scheduler,
    Stream,
    Work,
    collect,
    stepper_for,
    works_of,
)
from specruntime.text.chat_template import Message
from specruntime.text.codec import TextCodec

GROUP = "specruntime.builders"


def build_bundle(
    model: str, speculative_config: Mapping[str, Any] | None, dtype: str | None, max_model_len: int | None
) -> Path:
    """Return the path of a bundle that the first builder installed here makes or has made of these.

    Raises `BackendMissing` where none is installed, and whatever the builder raises.
    """
    found = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    if not found:
        raise BackendMissing(
            f"{model} is not a bundle (no manifest.json) and no builder is installed: "
            "install specexport, or build the bundle on another host with `specexport build`"
        )
    builder = found[0].load()
    built = builder(
        model=model, speculative_config=speculative_config, dtype=dtype, max_model_len=max_model_len
    )
    return Path(built)


Progress = bool | Callable[..., Any]  # no bar, tqdm's own, or one made by a callable with tqdm's interface
_OPTIONS = (
    "speculative_config", "dtype", "max_model_len", "max_num_seqs", "speculate_up_to", "prefix_caching",
    "threads", "provider", "kernels", "verify",
)  # fmt: skip
_QUEUE = 1_000_000  # a caller's own list of prompts is bounded by the caller


class _Served:
    """A loaded bundle and its scheduler. A context manager; closing it ends what still runs."""

    def __init__(
        self,
        model: str | Path,
        *,
        speculative_config: Mapping[str, Any] | None = None,
        dtype: str | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int | None = None,
        speculate_up_to: int | None = None,
        prefix_caching: PrefixCaching = "exact",
        threads: int | None = None,
        provider: str | None = None,
        kernels: str | None = None,
        verify: bool = True,
        **unknown: object,
    ) -> None:
        """Open the bundle at `model`, or build one where `model` names a checkpoint.

        `speculative_config`, `dtype` and `max_model_len` describe a bundle to be built: what drafts, the precision and
        the KV capacity. `max_num_seqs` prompts are answered at the same time (default: as many as one launch of the
        engine holds); each has its own caches. While more than `speculate_up_to` of them decode in one
        launch no row drafts (default: whatever was measured to be faster). A prompt that begins as another one or as an
        answer did takes over its cache rows: `prefix_caching` is "exact", "all" (below fp32 too, where rounding may
        then differ) or "off". `threads`, `provider`, `kernels` and `verify` as
        in `EngineOptions` and `open_bundle`. Raises `InvalidArgument` for an unknown or unusable option,
        `BackendMissing` where nothing can build, and what `open_bundle` raises.
        """
        for name in unknown:
            raise InvalidArgument(f"LLM has no option {name!r}, {one_of(name, _OPTIONS)}")
        if max_num_seqs is not None and max_num_seqs < 1:
            raise InvalidArgument(f"max_num_seqs is {max_num_seqs}, expected at least 1")
        path = _bundle_path(model, speculative_config, dtype, max_model_len)
        engine = EngineOptions(threads, provider, kernels=kernels)
        self._bundle = open_bundle(path, options=engine, verify=verify, text=True)
        try:
            slots = self._bundle.manifest.target.batch if max_num_seqs is None else max_num_seqs
            stepper = stepper_for(
                self._bundle, slots, speculate_up_to=speculate_up_to, prefix_caching=prefix_caching
            )
            self._scheduler = Scheduler(stepper, queue_limit=_QUEUE)
        except BaseException:
            self._bundle.close()
            raise
        self._numbers = count()
        self._end = finalize(self, _close, self._scheduler, self._bundle)

    @property
    def bundle(self) -> LoadedBundle:
        return self._bundle

    @property
    def tokenizer(self) -> TextCodec | None:
        """The bundle's; None where it has none, so that only token ids go in and out."""
        return self._bundle.tokenizer

    def close(self) -> None:
        """End what still runs and frees caches and weights. Idempotent."""
        self._end()

    def _request(
        self,
        prompt: Prompt | ChatPrompt,
        params: SamplingParams | None,
        request_id: str | None = None,
    ) -> tuple[list[Work], RequestOutput]:
        """Return the work of each answer to a prompt, and the request that they are added to."""
        given: object = params
        if given is not None and not isinstance(given, SamplingParams):
            raise no_params(given)
        params = params or SamplingParams()
        number = str(next(self._numbers)) if request_id is None else request_id
        if isinstance(prompt, ChatPrompt):
            require_alone(prompt.offer, params.structured_outputs)
            if params.structured_outputs is not None:  # the form of the whole answer: it is content
                works = works_of(Work(np.asarray(prompt.ids), params), params.n)
                return works, new_output(number, None, prompt.ids, params.n, ReplyStyle())
            params = params if prompt.reasoning is None else replace(params, reasoning=prompt.reasoning)
            works = works_of(Work(np.asarray(prompt.ids), params, shown=prompt.shown), params.n)
            return works, new_output(number, None, prompt.ids, params.n, prompt.style)
        text, ids = prompt_ids(prompt, self.tokenizer)
        return works_of(Work(np.asarray(ids), params), params.n), new_output(number, text, ids, params.n)

    def _chat(self, messages: Sequence[Message], offer: ToolOffer) -> ChatPrompt:
        return chat_prompt(require_codec(self.tokenizer), messages, offer)


class LLM(_Served):
    """Answers prompts with one bundle. May be used from several threads.

    `LLM("my.bundle").generate(["Hello"], SamplingParams(temperature=0.7, max_tokens=64))`
    """

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: Progress = False,
        **others: object,
    ) -> list[RequestOutput]:
        """Return the answers, in the order of the prompts; the options are one for all or one each (default: greedy).

        A prompt is a text, a list of token ids, or a mapping with `prompt` or `prompt_token_ids`. An answer without
        `max_tokens` goes on until an end token or until the cache is full. `use_tqdm` shows a progress bar of the
        prompts: True, or what is called as `tqdm` is (`tqdm.notebook.tqdm`, a partial). Raises `EmptyPrompt`,
        `InvalidArgument` or `CapacityExceeded` for a prompt, before any is answered, `BackendMissing` for a bar
        without tqdm, and `EngineFailed`. Other arguments of vLLM may be given at the values that change nothing.
        """
        require_neutral(others)
        return self._answer(listed(prompts), sampling_params, use_tqdm)

    def _answer(
        self,
        prompts: Sequence[Prompt] | Sequence[ChatPrompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: Progress,
    ) -> list[RequestOutput]:
        chosen = one_each(sampling_params, len(prompts))
        requests = [self._request(prompt, params) for prompt, params in zip(prompts, chosen, strict=True)]
        works = [work for works, _ in requests for work in works]
        with _progress(use_tqdm, len(works)) as ended:
            answers = iter(collect(self._scheduler, works, ended))
        for works, output in requests:
            for index in range(len(works)):
                for delivery in next(answers):
                    output.add(delivery, self.tokenizer, index)
        return [output for _, output in requests]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: Progress = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: object = None,
        parallel_tool_calls: bool = True,
        **others: object,
    ) -> list[RequestOutput]:
        """`generate` for a conversation or a list of them, rendered by the bundle's chat template.

        `tools`, `tool_choice` and `parallel_tool_calls` are those of the OpenAI API. Of each answer `message` is the
        message to go on with: content, reasoning and tool calls apart. `text` is all of what the model wrote.
        """
        require_neutral(others)
        offer = offered(tools, tool_choice, parallel_tool_calls)
        first = next(iter(messages), None)
        conversations: Any = [messages] if first is None or isinstance(first, Mapping) else messages
        return self._answer([self._chat(one, offer) for one in conversations], sampling_params, use_tqdm)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> "DeltaStream":
        """Return the answer to one prompt as it grows, one delta a round. Closing the iterator cancels the answer.

        Raises as `generate`, at once, and `InvalidArgument` for `n` above 1.
        """
        return self._stream(prompt, sampling_params)

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: object = None,
    ) -> "DeltaStream":
        """`stream` for a conversation: the text of its deltas is all of what the model writes."""
        return self._stream(self._chat(messages, offered(tools, tool_choice)), sampling_params)

    def _stream(self, prompt: Prompt | ChatPrompt, params: SamplingParams | None) -> "DeltaStream":
        works, _ = self._request(prompt, params)
        if len(works) != 1:
            raise InvalidArgument(f"n is {len(works)}, expected 1: a stream is of one answer, use `generate`")
        return DeltaStream(Stream(self._scheduler, works[0]))

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncLLM(_Served):
    """`LLM` for asyncio: `async for output in AsyncLLM("my.bundle").generate("Hello", params): ...`"""

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        **others: object,
    ) -> AsyncIterator[RequestOutput]:
        """Return the answer to one prompt as it grows: the same object after each round, `finished` at the end.

        Leaving the loop early and closing the iterator cancels the answer. Raises as `LLM.generate`, at once.
        """
        require_neutral(others)
        works, output = self._request(prompt, sampling_params, request_id)
        return self._grow(AsyncStreams(self._scheduler, works), output)

    def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: object = None,
        parallel_tool_calls: bool = True,
        **others: object,
    ) -> AsyncIterator[RequestOutput]:
        """`generate` for a conversation, with the arguments of `LLM.chat`."""
        require_neutral(others)
        prompt = self._chat(messages, offered(tools, tool_choice, parallel_tool_calls))
        works, output = self._request(prompt, sampling_params, request_id)
        return self._grow(AsyncStreams(self._scheduler, works), output)

    async def _grow(self, deliveries: AsyncStreams, output: RequestOutput) -> AsyncIterator[RequestOutput]:
        try:
            async for number, delivery in deliveries:
                output.add(delivery, self.tokenizer, number)
                yield output
        finally:
            deliveries.close()

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def _close(scheduler: Scheduler, bundle: LoadedBundle) -> None:
    scheduler.close()
    bundle.close()


class DeltaStream(Iterator[Delta]):
    """The deltas of one answer. `seed` is that of its noise."""

    def __init__(self, deliveries: Stream) -> None:
        self._deliveries = deliveries
        self.seed = deliveries.ticket.figures.seed

    def __next__(self) -> Delta:
        return next(self._deliveries).delta

    def close(self) -> None:
        """Cancel the answer, unless it has ended. Idempotent."""
        self._deliveries.close()


@contextmanager
def _progress(wanted: Progress, total: int) -> Iterator[Callable[[], object]]:
    """Yield a bar of `total` answers; gives what is called as each one ends."""
    if not isinstance(wanted, bool) and not callable(wanted):
        raise InvalidArgument(f"use_tqdm is {shown(wanted)}, expected True, False or a callable like tqdm")
    if wanted is False:
        yield lambda: None
        return
    bar = (_tqdm() if wanted is True else wanted)(total=total, desc="answers")
    try:
        yield lambda: bar.update(1)
    finally:
        bar.close()


def _tqdm() -> Callable[..., Any]:
    try:
        tqdm: Callable[..., Any] = import_module("tqdm.auto").tqdm
    except ImportError as error:
        raise BackendMissing(
            "use_tqdm=True needs tqdm, which is not installed: pip install tqdm, or leave use_tqdm out"
        ) from error
    return tqdm


def _bundle_path(
    model: str | Path,
    speculative_config: Mapping[str, Any] | None,
    dtype: str | None,
    max_model_len: int | None,
) -> Path:
    if not (Path(model) / MANIFEST_NAME).exists():
        return build_bundle(os.fspath(model), speculative_config, dtype, max_model_len)
    of_builds = {"speculative_config": speculative_config, "dtype": dtype, "max_model_len": max_model_len}
    for name, value in of_builds.items():
        if value is not None:
            raise InvalidArgument(
                f"{name} describes a bundle to be built and {model} is one already: leave it out, or name a checkpoint"
            )
    return Path(model)
