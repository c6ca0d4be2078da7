"""How ids are cut into windows: every id once, in order, never past the cache, and in few padded rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specruntime.engines.windows import Feeder
from tests.runtime.scripted_engine import Language, ScriptedContext, clean_logits, clean_rows, graph_spec

WIDTHS = [("step", 1, 1), ("verify_4", 4, 4), ("verify_11", 11, 11), ("chunk_16", 16, 1), ("chunk_64", 64, 1)]


def feeding(capacity: int = 200) -> tuple[ScriptedContext, Feeder]:
    context = ScriptedContext(graph_spec(WIDTHS, capacity=capacity), Language())
    return context, Feeder(context)


@pytest.mark.parametrize(
    ("count", "windows"),
    [
        (1, ["step"]),
        (2, ["verify_4"]),
        (4, ["verify_4"]),
        (12, ["chunk_16"]),
        (17, ["chunk_16", "step"]),
        (30, ["chunk_16", "chunk_16"]),
        (64, ["chunk_64"]),
        (66, ["chunk_64", "verify_4"]),
        (130, ["chunk_64", "chunk_64", "verify_4"]),
    ],
)
def test_prompts_are_cut_into_few_launches_and_little_padding(count: int, windows: list[str]) -> None:
    context, feeder = feeding()
    feeder.feed(np.arange(count) % 97, 0)
    assert context.runs == windows
    assert feeder.tally.calls == {name: windows.count(name) for name in set(windows)}


@given(count=st.integers(1, 90), start=st.integers(0, 90), capacity=st.integers(70, 120))
def test_whatever_is_fed_the_cache_and_the_last_row_are_those_of_one_pass(
    count: int, start: int, capacity: int
) -> None:
    start = min(start, capacity - 1)
    count = min(count, capacity - start)
    context, feeder = feeding(capacity)
    tokens = np.arange(start + count) * 7 % 97
    if start:
        feeder.feed(tokens[:start], 0)
    rows = feeder.feed(tokens[start:], start)
    assert np.array_equal(context.rows(start + count), clean_rows(tokens.tolist()))
    assert np.array_equal(feeder.logits(rows), [clean_logits(context.language, tokens.tolist())])
    assert feeder.top_ids(rows).tolist() == [int(np.argmax(feeder.logits(rows)[0]))]


@given(count=st.integers(1, 11), start=st.integers(0, 100))
def test_each_judged_row_is_that_of_a_pass_over_the_ids_before_it(count: int, start: int) -> None:
    context, feeder = feeding(100)
    limit = feeder.judged_limit(start)
    assert limit == max((w for w in (1, 4, 11) if start + w <= 100), default=0)
    count = min(count, limit)
    if count < 1:
        return
    tokens = (np.arange(start + count) * 5 % 97).tolist()
    if start:
        feeder.feed(np.array(tokens[:start]), 0)
    rows = feeder.judge(np.array(tokens[start:]), start)
    expected = [clean_logits(context.language, tokens[: start + i + 1]) for i in range(count)]
    assert np.array_equal(feeder.logits(rows), expected)
