"""What a round costs on the host, in bytecode instructions of the runtime: the same on every machine, so a clear loss
fails without a clock. The engine is a stand-in and is not counted."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import specruntime
from specruntime.drafts import DraftSpec, NgramDraft, NoneDraft
from specruntime.sampling.params import SamplingParams
from specruntime.session import Session
from tests.runtime.scripted_engine import Bench, target_spec

PACKAGE = str(Path(specruntime.__file__).parent)
# 1151 and 1304 when the test was written. A round of the real pair takes some 10 ms, a thousand instructions 0.03.
PLAIN_ROUND, NGRAM_ROUND = 2000, 2300


class Instructions:
    """Counts while its block runs."""

    def __init__(self) -> None:
        self.count = 0

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            self.count += 1
        return self.trace


@contextmanager
def counted() -> Iterator[Instructions]:
    found, before = Instructions(), sys.gettrace()
    sys.settrace(found.trace)
    try:
        yield found
    finally:
        sys.settrace(before)


def instructions_of_rounds(session: Session, rounds: int) -> float:
    """Of one round, on average."""
    with counted() as found:
        for _ in range(rounds):
            session.round()
    return found.count / rounds


def session_of(draft: DraftSpec, tokens: int) -> Session:
    """A session that holds `tokens` and has fed them."""
    session = Bench(draft, target=target_spec(capacity=640, prefill=64)).session
    session.append([n * 7 % 90 for n in range(tokens)])
    session.begin(SamplingParams())
    session.round()
    return session


@pytest.mark.parametrize(
    ("draft", "most"),
    [(NoneDraft(), PLAIN_ROUND), (NgramDraft(k=4, max_n=3, min_n=1), NGRAM_ROUND)],
    ids=["plain", "ngram"],
)
def test_a_round_stays_within_its_instructions(draft: DraftSpec, most: int) -> None:
    found = instructions_of_rounds(session_of(draft, 20), 20)
    assert 100 < found < most, f"a round takes {found:.0f} instructions"


@pytest.mark.parametrize("draft", [NoneDraft(), NgramDraft(k=4, max_n=3, min_n=1)], ids=["plain", "ngram"])
def test_a_round_costs_no_more_behind_a_long_text(draft: DraftSpec) -> None:
    short, long = (instructions_of_rounds(session_of(draft, tokens), 20) for tokens in (20, 500))
    assert long < 1.3 * short


def test_a_loop_over_the_text_would_be_noticed() -> None:
    """The control: a draft that looks at every token in Python."""
    session = session_of(NoneDraft(), 500)
    plain = instructions_of_rounds(session, 5)
    code = compile(
        "def look(tokens):\n    return sum(1 for token in tokens if token)", f"{PACKAGE}/x.py", "exec"
    )
    made: dict[str, Callable[[list[int]], int]] = {}
    exec(code, made)
    with counted() as found:
        made["look"](session.tokens.tolist())
    assert found.count > PLAIN_ROUND - plain
