"""An answer ends at the same character however its text is cut into tokens, and no stop text is ever shown."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specruntime.errors import WrongState
from specruntime.sampling.params import SamplingParams
from specruntime.stopping import StopChecker

EOS = 9


def run(tokens: list[tuple[int, str]], **options: Any) -> tuple[list[str], str | None, int]:
    """Texts shown at each token up to the end, the finish reason and the length of the answer."""
    checker = StopChecker(SamplingParams(**options), [EOS])
    shown: list[str] = []
    for token, text in tokens:
        verdict = checker.feed(token, text)
        shown.append(verdict.text)
        if verdict.finish_reason is not None:
            return shown, verdict.finish_reason, checker.tokens
    return [*shown, checker.finish().text], None, checker.tokens


def words(*texts: str) -> list[tuple[int, str]]:
    return [(1, text) for text in texts]


@pytest.mark.parametrize("options", [{}, {"stop_token_ids": (7,)}])
def test_an_end_token_is_the_last_and_has_no_text(options: dict[str, Any]) -> None:
    assert run([(1, "a"), (EOS, ""), (1, "b")], **options) == (["a", ""], "stop", 2)


def test_a_stop_id_ends_the_answer_as_eos_does() -> None:
    assert run([(1, "a"), (7, ""), (1, "b")], stop_token_ids=(7,)) == (["a", ""], "stop", 2)


@pytest.mark.parametrize("options", [{}, {"max_tokens": 2}])
def test_text_that_waited_for_bytes_comes_with_the_last_token_and_may_hold_a_stop_string(
    options: dict[str, Any],
) -> None:
    last = (1, "t?") if options else (EOS, "t?")
    assert run([(1, "a"), last], stop=("END",), **options)[:2] == (
        ["a", "t?"],
        "length" if options else "stop",
    )
    assert run([(1, "a"), last], stop=("?",), **options) == (["a", "t"], "stop", 2)


@pytest.mark.parametrize(("minimum", "verdict"), [(0, ("", "stop")), (1, ("s?", "capacity"))])
def test_text_that_waited_for_bytes_may_hold_a_stop_string_at_the_capacity(
    minimum: int, verdict: tuple[str, str]
) -> None:
    checker = StopChecker(SamplingParams(stop=("s?",), min_tokens=minimum), [EOS])
    checker.feed(1, "s")
    end = checker.finish("?")
    assert (end.text, end.finish_reason) == verdict


def test_the_last_token_is_known_before_its_text() -> None:
    checker = StopChecker(SamplingParams(max_tokens=3, min_tokens=1), [EOS])
    assert not checker.is_last(1) and not checker.is_last(EOS)
    checker.feed(1, "a")
    assert not checker.is_last(1) and checker.is_last(EOS)
    checker.feed(1, "a")
    assert checker.is_last(1) and checker.is_last(EOS)


def test_ignored_eos_is_a_token_like_others_but_a_stop_id_still_ends() -> None:
    assert run([(EOS, "x"), (1, "a")], ignore_eos=True) == (["x", "a", ""], None, 2)
    assert run([(EOS, ""), (1, "a")], ignore_eos=True, stop_token_ids=(EOS,)) == ([""], "stop", 1)


def test_text_held_back_is_shown_when_an_end_token_shows_that_it_is_no_stop() -> None:
    assert run([(1, "so EN"), (EOS, "")], stop=("END",)) == (["so ", "EN"], "stop", 2)


def test_what_may_become_a_stop_string_is_held_back_until_it_cannot() -> None:
    assert run(words("a", "ST", "OX", "b"), stop=("STOP",)) == (["a", "", "STOX", "b", ""], None, 4)
    assert run(words("a", "ST", "OP", "b"), stop=("STOP",)) == (["a", "", ""], "stop", 3)


def test_a_stop_string_may_begin_inside_one_that_failed() -> None:
    assert run(words("a", "a", "b", "c"), stop=("aab", "abc")) == (["", "", ""], "stop", 3)
    assert run(words("aa", "a", "b"), stop=("aab",)) == (["", "a", ""], "stop", 3)


def test_the_stop_that_ends_first_counts_and_of_those_the_longest() -> None:
    assert run(words("xabcd"), stop=("abcd", "bc")) == (["xa"], "stop", 1)
    assert run(words("xabc"), stop=("bc", "abc", "c")) == (["x"], "stop", 1)


@pytest.mark.parametrize("offset", range(8))
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_stop_string_over_several_tokens_is_found_at_every_offset(offset: int, size: int) -> None:
    before = "lorem ipsum"[:offset]
    text = before + "</end>" + "tail of the round"
    tokens = words(*(text[i : i + size] for i in range(0, len(text), size)))
    shown, reason, length = run(tokens, stop=("</end>",))
    assert ("".join(shown), reason) == (before, "stop")
    assert length == (offset + len("</end>") + size - 1) // size


def test_tokens_without_text_yet_change_nothing() -> None:
    assert run(words("a", "", "ST", "", "OP"), stop=("STOP",)) == (["a", "", "", "", ""], "stop", 5)


@pytest.mark.parametrize("limit", range(1, 7))
@pytest.mark.parametrize("stop_at", range(1, 7))
@pytest.mark.parametrize("kind", ["eos", "id", "string", "long string"])
def test_stop_and_limit_at_every_pair_of_positions(limit: int, stop_at: int, kind: str) -> None:
    tokens = words(*"abcdef")
    options: dict[str, Any] = {}
    if kind == "eos":
        tokens[stop_at - 1] = (EOS, "")
    elif kind == "id":
        tokens[stop_at - 1], options = (7, ""), {"stop_token_ids": (7,)}
    elif kind == "string":
        options = {"stop": ("abcdef"[stop_at - 1],)}
    else:
        options = {"stop": ("abcdef"[max(0, stop_at - 2) : stop_at],)}
    shown, reason, length = run(tokens, max_tokens=limit, **options)
    stopped = stop_at <= limit  # the stop wins at the same token
    kept = max(0, stop_at - (2 if kind == "long string" else 1)) if stopped else limit
    assert (reason, length) == ("stop" if stopped else "length", min(stop_at, limit))
    assert "".join(shown) == "abcdef"[:kept]


def test_text_held_back_is_shown_at_the_limit() -> None:
    assert run(words("a", "ST"), stop=("STOP",), max_tokens=2) == (["a", "ST"], "length", 2)


@pytest.mark.parametrize("minimum", range(5))
def test_none_of_the_first_min_tokens_ends_the_answer(minimum: int) -> None:
    stops = [(7, "x")] * 6
    assert run(stops, stop_token_ids=(7,), min_tokens=minimum)[1:] == ("stop", minimum + 1)
    assert run(words(*"xxxxxx"), stop=("x",), min_tokens=minimum) == (
        ["x"] * minimum + [""],
        "stop",
        minimum + 1,
    )


def test_a_stop_string_that_ended_in_the_first_min_tokens_is_passed_over() -> None:
    assert run(words("ab", "c", "b"), stop=("b", "abd"), min_tokens=1) == (["", "abc", ""], "stop", 3)


def test_a_stop_string_may_begin_in_the_first_min_tokens() -> None:
    assert run(words("xS", "TOP"), stop=("STOP",), min_tokens=1) == (["x", ""], "stop", 2)


def test_nothing_is_fed_after_the_end() -> None:
    checker = StopChecker(SamplingParams(max_tokens=1), [EOS])
    checker.feed(1, "a")
    with pytest.raises(WrongState, match="the answer has ended"):
        checker.feed(1, "b")
    assert (checker.tokens, checker.finish().text) == (1, "")


STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3).map(tuple)
PIECES = st.lists(st.text("ab", max_size=4), max_size=8)


def first_stop(text: str, stops: tuple[str, ...]) -> tuple[int, int] | None:
    """(end, start) of the stop that ends first in the text, the longest of those."""
    found = ((text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text)
    return min(found, default=None)


@given(PIECES, STOPS)
def test_the_answer_does_not_depend_on_how_its_text_is_cut(pieces: list[str], stops: tuple[str, ...]) -> None:
    shown, reason, length = run(words(*pieces), stop=stops)
    whole = "".join(pieces)
    stop = first_stop(whole, stops)
    assert "".join(shown) == (whole if stop is None else whole[: stop[1]])
    assert reason == (None if stop is None else "stop")
    if stop is not None:
        assert len("".join(pieces[: length - 1])) < stop[0] <= len("".join(pieces[:length]))


@given(PIECES, STOPS)
def test_exactly_what_may_still_become_a_stop_is_held_back(pieces: list[str], stops: tuple[str, ...]) -> None:
    checker = StopChecker(SamplingParams(stop=stops), [EOS])
    text, shown = "", ""
    for piece in pieces:
        verdict = checker.feed(1, piece)
        text, shown = text + piece, shown + verdict.text
        if verdict.finish_reason is not None:
            return
        prefixes = {stop[:size] for stop in stops for size in range(len(stop))} | {""}
        assert text[len(shown) :] == max((p for p in prefixes if text.endswith(p)), key=len)
