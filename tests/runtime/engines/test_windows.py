"""How ids are cut into windows: every id once, in order, never past the cache, and in few padded rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specruntime.engines.protocol import Window
from specruntime.engines.windows import Feeder, stage, stage_chain
from specruntime.manifest.schema import Profile
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
    assert feeder.counters.calls == {name: windows.count(name) for name in set(windows)}


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


def blank(width: int, rows: int, *, lanes: int = 1) -> Window:
    """A window whose every input holds something that staging must replace."""
    return Window(
        profile=Profile(name="window", width=width, rows=rows),
        input_ids=np.full((lanes, width), 77),
        position_ids=np.full((lanes, width), 77),
        cache_length=np.full(lanes, 77),
        logits_rows=np.full((lanes, rows), 77),
        window_mask=np.ones((lanes, width, width), np.bool_),
        query_lengths=np.full(lanes, 77, np.int32),
        top_ids=np.zeros((lanes, rows), np.int64),
        hidden=np.full((lanes, width, 2), 77, np.float32),
    )


def inputs_of(window: Window) -> dict[str, np.ndarray]:
    names = (
        "input_ids",
        "position_ids",
        "cache_length",
        "logits_rows",
        "window_mask",
        "query_lengths",
        "hidden",
    )
    return {name: getattr(window, name) for name in names}


@pytest.mark.parametrize(("rows", "judged"), [(1, [2]), (5, [0, 1, 2, 3, 4]), (3, [0, 1, 2])])
def test_a_chain_is_staged_with_its_padding_behind_it(rows: int, judged: list[int]) -> None:
    window = blank(5, rows)
    stage_chain(window)
    stage(window, np.array([8, 9, 10]), 20, hidden=np.arange(6, dtype=np.float32).reshape(3, 2))
    assert window.input_ids.tolist() == [[8, 9, 10, 0, 0]]
    assert window.position_ids.tolist() == [[20, 21, 22, 23, 24]]
    assert (window.cache_length.tolist(), window.query_lengths.tolist()) == ([20], [3])  # type: ignore[union-attr]
    assert window.logits_rows.tolist() == [judged]
    assert window.window_mask is not None and np.array_equal(window.window_mask[0], np.tri(5, dtype=np.bool_))
    assert window.hidden is not None
    assert window.hidden[0].tolist() == [[0, 1], [2, 3], [4, 5], [0, 0], [0, 0]]


def test_a_tree_is_staged_with_a_chain_as_its_padding() -> None:
    window = blank(4, 4)
    sees = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]], np.bool_)
    stage(
        window,
        np.array([8, 9, 10]),
        20,
        positions=np.array([20, 21, 21]),
        sees=sees,
        rows=np.array([1, 2]),
        valid=4,
    )
    assert window.position_ids.tolist() == [[20, 21, 21, 23]]
    assert window.logits_rows.tolist() == [[1, 2, 0, 0]]
    assert window.query_lengths is not None and window.query_lengths.tolist() == [4]
    assert window.window_mask is not None
    assert window.window_mask[0].astype(int).tolist() == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [1, 0, 1, 0],
        [1, 1, 1, 1],
    ]


def test_what_is_not_given_stays() -> None:
    window = blank(4, 1)
    stage(window, np.array([8]), 20)
    assert window.window_mask is not None and window.window_mask.all()
    assert window.hidden is not None and (window.hidden == 77).all()


@given(lane=st.integers(0, 2), count=st.integers(1, 4), start=st.integers(0, 9))
def test_a_lane_is_staged_as_if_it_were_alone_and_others_are_left(lane: int, count: int, start: int) -> None:
    ids, sees = np.arange(count) + 5, np.tri(count, dtype=np.bool_)
    hidden = np.ones((count, 2), np.float32)
    alone, shared, before = blank(4, 4), blank(4, 4, lanes=3), blank(4, 4, lanes=3)
    stage(alone, ids, start, sees=sees, hidden=hidden)
    stage(shared, ids, start, lane=lane, sees=sees, hidden=hidden)
    for name, expected in inputs_of(alone).items():
        found = inputs_of(shared)[name]
        assert np.array_equal(found[lane], expected[0]), name
        others = [other for other in range(3) if other != lane]
        assert np.array_equal(found[others], inputs_of(before)[name][others]), name
