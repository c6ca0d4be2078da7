"""Masks as sets of tokens, and the paths that a constraint walks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specruntime.errors import DeadEnd, InvalidArgument
from specruntime.sampling.constraint import Constraint, Mask, bits_of, unconstrained
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.structured import StructuredOutputsParams
from tests.runtime.constraints.toy_grammar import Toy, ToyMatcher


@given(st.integers(1, 700), st.data())
def test_a_mask_is_a_set_of_tokens(vocab: int, data: st.DataObject) -> None:
    tokens = data.draw(st.sets(st.integers(0, vocab - 1)))
    mask = Mask(bits_of(sorted(tokens), vocab), vocab)
    row = np.random.default_rng(vocab).normal(size=vocab).astype(np.float32)
    everything = np.arange(vocab)
    assert mask.count == len(tokens)
    assert mask.ids.tolist() == sorted(tokens)
    assert mask.only == (next(iter(tokens)) if len(tokens) == 1 else None)
    assert {token for token in range(-1, vocab + 40) if token in mask} == tokens
    assert np.array_equal(mask.of(everything), mask.allowed)
    masked = mask.masked(row)
    assert np.array_equal(masked, np.where(mask.allowed, row, -np.inf)) and masked is not row


@given(st.lists(st.integers(0, 6), max_size=6), st.lists(st.lists(st.integers(0, 8), max_size=4), max_size=8))
def test_masks_do_not_depend_on_what_was_asked_before(answer: list[int], paths: list[list[int]]) -> None:
    toy = Toy(11, 9, (7, 8), share=0.7, forced=0.1)
    constraint, committed = toy.constraint(), list[int]()
    for token in [None, *answer]:
        if token is not None:
            if constraint.ended() or token not in constraint.mask():
                continue
            constraint.commit([token])
            committed.append(token)
        for path in paths:
            whole = [*committed, *path]
            found = constraint.mask(path).allowed
            possible = all(toy.mask(whole[:place])[each] for place, each in enumerate(whole))
            over = bool({7, 8} & set(whole))
            assert np.array_equal(found, toy.mask(whole) if possible and not over else np.zeros(9, np.bool_))


def test_committing_keeps_what_is_known_of_the_paths_behind() -> None:
    toy = Toy(11, 9, (7, 8), share=0.9, forced=0.0, ending=0.0)
    matcher = ToyMatcher(toy)
    constraint = Constraint(matcher, 9, (7, 8))
    first = int(constraint.mask().ids[0])
    second = int(constraint.mask([first]).ids[0])
    constraint.mask([first, second])
    found = matcher.found
    constraint.commit([first])
    constraint.mask([])
    constraint.mask([second])
    assert matcher.found == found
    constraint.commit([second, int(constraint.mask([second]).ids[0])])
    constraint.mask()
    assert matcher.found == found + 1


class Failing(ToyMatcher):
    """Cannot find out what follows two tokens or more."""

    def words(self) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
        if len(self.tokens) > 1:
            raise DeadEnd("too complex")
        return super().words()


def test_a_matcher_that_gives_up_ends_the_answer_where_it_does() -> None:
    toy = Toy(11, 9, (7, 8), share=0.9, forced=0.0, ending=0.0)
    constraint = Constraint(Failing(toy), 9, (7, 8))
    path: Sequence[int] = [int(constraint.mask().ids[0])]
    path = [*path, int(constraint.mask(path).ids[0])]
    with pytest.raises(DeadEnd):
        constraint.mask(path)
    assert constraint.peek(path).count == 0 and constraint.mask(path[:1]).count


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"regex": "a", "whitespace_pattern": " "}, "whitespace_pattern is given with regex"),
        ({"choice": ["a"], "disable_any_whitespace": False}, "disable_any_whitespace is given with choice"),
        ({"json_object": True, "disable_additional_properties": True}, "is given with json_object"),
    ],
)
def test_an_option_that_a_form_does_not_have_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        StructuredOutputsParams(**options)


def test_a_session_without_a_tokenizer_refuses_forms() -> None:
    unconstrained(SamplingParams())
    with pytest.raises(InvalidArgument, match="tokenizer"):
        unconstrained(SamplingParams(structured_outputs=StructuredOutputsParams(json_object=True)))
