"""Whole answers, side by side: plain, speculative, and transformers' `generate`, eager and compiled.

pytest-benchmark's table groups the modes of one prompt.
"""

from typing import Any

import pytest

from specexport.bench.prompts import encode_prompts
from specexport.pytorch_reference import PytorchReference, ReferenceMode
from specruntime import LoadedBundle, SamplingParams, complete
from tests.latency.conftest import chosen

NEW_TOKENS = 64
GREEDY = SamplingParams(max_tokens=NEW_TOKENS)
SAMPLED = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.7, top_p=0.9, seed=1)


def encoded(bundle: LoadedBundle, prompt: str) -> list[int]:
    return encode_prompts(bundle, chosen(prompt), NEW_TOKENS)[prompt]


@pytest.mark.parametrize("law", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("speculate", [False, True], ids=["plain", "speculative"])
@pytest.mark.parametrize("prompt", ["copy", "chat"])
def test_an_answer(
    benchmark: Any, opened: LoadedBundle, prompt: str, speculate: bool, law: SamplingParams
) -> None:
    benchmark.group = prompt
    ids, session = encoded(opened, prompt), opened.new_session(speculate=speculate)

    def answer() -> int:
        session.reset()
        return len(complete(session, ids, law, opened.tokenizer).token_ids)

    tokens = benchmark.pedantic(answer, rounds=3, warmup_rounds=1)
    benchmark.extra_info["tokens_per_second"] = tokens / benchmark.stats.stats.median
    benchmark.extra_info["acceptance_length"] = session.stats.acceptance_length
    session.close()


@pytest.mark.parametrize("mode", ["pytorch", "pytorch-compiled"])
@pytest.mark.parametrize("prompt", ["copy", "chat"])
def test_pytorchs_answer(
    benchmark: Any, opened: LoadedBundle, reference: PytorchReference, prompt: str, mode: ReferenceMode
) -> None:
    benchmark.group = prompt
    ids = encoded(opened, prompt)
    reference.warm_up(encoded(opened, "copy"), NEW_TOKENS, mode)
    answer = benchmark.pedantic(reference.answer, args=(ids, GREEDY, NEW_TOKENS, mode), rounds=3)
    benchmark.extra_info["tokens_per_second"] = len(answer.token_ids) / benchmark.stats.stats.median
