"""One generation: the committed tokens, the target's cache, and the round that grows both.

    round: draft -> verify -> accept -> commit

Owns the committed ids and how many of them are in the cache. Between rounds the last token is not: it is row 0 of the
next window, so rolling back is setting an integer and stale cache rows are simply written over. Knows nothing of
text, stop conditions or files.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from specruntime import clock as host_clock
from specruntime.drafts import NOTHING, Draft, Proposal, Room, Verdict
from specruntime.drafts.constrained import forced_tail, propose
from specruntime.engines.protocol import Context, Window
from specruntime.engines.windows import Feeder, Rows
from specruntime.errors import CapacityExceeded, EmptyPrompt, InvalidArgument, WrongState
from specruntime.guard import Guard, Phases, index, token_ids
from specruntime.manifest.schema import Manifest
from specruntime.sampling.constraint import Constrain, unconstrained
from specruntime.sampling.params import SamplingParams, shown
from specruntime.sampling.sampler import Sampler
from specruntime.statistics import EngineCounters, Statistics
from specruntime.trace import Trace, trace_round
from specruntime.verify import Outcome, Round, kept_features, round_of, trials, verify


class Session:
    """Decodes one sequence. A call from a second thread while one is running raises `SessionBusy`.

    Every method but `reset` and `close` raises `SessionPoisoned` after an engine call has failed, and every method
    but `close` raises `WrongState` once the session is closed.
    """

    def __init__(
        self,
        target: Context,
        draft: Draft,
        *,
        manifest: Manifest,
        clock: Callable[[], float] | None = None,
        trace: Trace | None = None,
        constrain: Constrain = unconstrained,
    ) -> None:
        """Take ownership of both: `close` closes them. `clock` measures its phases, in seconds; None: `clock.now`.

        `trace` gets a record of each round before it is committed; what it raises leaves the tokens as they were.
        `constrain` makes the constraint that an answer's params ask for; without it such params are refused.
        Raises `InvalidArgument` for a graph it cannot drive.
        """
        self.manifest = manifest
        self.stats = Statistics()  # of the current answer; `begin` replaces it
        self.answers = 0  # begun so far: tells whether an answer is still the current one
        self._feeder = Feeder(target)
        self._draft = draft
        # One more than fits the cache: the token that follows the last cache row.
        self._tokens = np.zeros(self.capacity + 1, dtype=np.int64)
        self._length = 0
        self._cache_length = 0
        self._prompt_length = 0
        self._sampler: Sampler | None = None
        self._seed: int | None = None
        self._trace = trace
        self._constrain = constrain
        self._guard = Guard()
        self._phases = Phases(self._guard, clock if clock is not None else host_clock.now)

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds that its own work takes; in a batch without those in which it waits for others."""
        return self._phases.clock

    @property
    def capacity(self) -> int:
        """Rows of the target's KV cache."""
        return self._feeder.capacity

    @property
    def length(self) -> int:
        """Committed tokens, prompt and answers."""
        return self._length

    @property
    def cache_length(self) -> int:
        """Rows of the target's cache that hold committed tokens."""
        return self._cache_length

    @property
    def tokens(self) -> NDArray[np.int64]:
        """[length] committed ids: a read-only view, valid until the next call that changes the session."""
        view = self._tokens[: self._length]
        view.flags.writeable = False
        return view

    @property
    def seed(self) -> int | None:
        """Seed of the answer begun last: the one of its params, or the one drawn for it.

        None before the first, and for a greedy answer that was given none.
        """
        return self._seed

    @property
    def poisoned(self) -> bool:
        """An engine call failed, so the cache is undefined: only `reset` and `close` are left."""
        return self._guard.poisoned

    def append(self, ids: Sequence[int] | NDArray[np.integer]) -> None:
        """Add prompt tokens [n]; the next round feeds them. Ends the current answer: `begin` the next one.

        Raises `EmptyPrompt` for no ids, `InvalidArgument` for what is not a token id, `CapacityExceeded` when they
        do not all fit the cache. Nothing is added then.
        """
        with self._guard.exclusive:
            self._append(ids)

    def prefill(self, ids: Sequence[int] | NDArray[np.integer]) -> None:
        """Add prompt tokens [n] as `append` does, and feed all tokens but the last at once instead of in the next
        round. Ends the current answer: `begin` the next one.

        What it costs is in no answer's statistics: the round after it feeds one token and may draft. Raises as
        `append`; `EngineFailed` when an engine fails (the session is poisoned then).
        """
        with self._guard.exclusive:
            self._append(ids)
            self._feeder.counters, self._draft.counters = EngineCounters(), EngineCounters()
            if self._length - self._cache_length > 1:
                self._feed(self._length - 1, None)
                self._cache_length = self._length - 1

    def begin(self, params: SamplingParams) -> None:
        """Start an answer to everything committed so far, with its own noise, penalties and statistics.

        Raises `EmptyPrompt` when nothing is committed. Always called between `append` or `rewind` and `round`.
        """
        with self._guard.exclusive:
            self._guard.require_sound()
            given: object = params
            if not isinstance(given, SamplingParams):
                raise InvalidArgument(f"begin takes SamplingParams, found {shown(given)}")
            if self._length == 0:
                raise EmptyPrompt(
                    "the session holds no tokens: append a prompt of at least one token before begin"
                )
            prompt = self._tokens[: self._length].tolist()
            ends, constraint = self.manifest.eos_token_ids, self._constrain(params)
            self._sampler = Sampler(params, self._feeder.vocab_size, ends, prompt, constraint)
            self._seed = params.seed if params.temperature == 0 else self._sampler.seed
            self._prompt_length = self._length
            self.answers += 1
            self.stats = Statistics()
            self._feeder.counters = self.stats.target
            self._draft.counters = self.stats.draft

    def round(self) -> Round:
        """Commit 1 to k+1 tokens, never more than `max_tokens` after `begin` unless nothing is left of it.

        A round that finds a prompt outside the cache feeds it in chunks and commits one token. In a constrained answer
        the tokens that must follow are committed as well, and are fed in the next round. Raises
        `WrongState` before `begin`, `CapacityExceeded` when no cache row is left, `EngineFailed` when an engine
        fails (the session is poisoned then), `InvalidArgument` when every token is banned. The tokens are those before
        the round then.
        """
        with self._guard.exclusive:
            sampler, phases = self._require_answer(), self._phases
            phases.begin()
            if self._cache_length < self._prompt_length - 1:
                return self._feeding_round(sampler, prefill=True)
            with phases.draft:
                proposal = self._propose(sampler)
            if self._behind and not len(proposal.ids):
                return self._feeding_round(sampler, prefill=False)
            with phases.verify:
                rows = self._verify(proposal)
            with phases.accept:
                outcome = self._judge(proposal, rows, sampler)
            self._settle(proposal, rows, outcome)
            return self._commit(proposal, rows, outcome, sampler)

    def start_from(self, source: "Session", length: int) -> None:
        """Forget every token, then hold the first `length` tokens of another session of the same bundle.

        Their cache rows are copied instead of computed, those of the draft too; as after `rewind` the last token is
        fed again. Raises `InvalidArgument` unless 0 <= length <= `source.length` and for a session that was opened in
        another way, `SessionBusy` while the source is at work, `SessionPoisoned` for a source whose caches are
        undefined, `EngineFailed` when the copy fails; this session is poisoned then.
        """
        with self._guard.exclusive, source._guard.exclusive:
            self._guard.require_sound()
            source._guard.require_sound()
            length = index("length", length)
            if not 0 <= length <= source._length:
                raise InvalidArgument(
                    f"cannot start from {shown(length)} tokens: the other session holds {source._length}"
                )
            self._require_like(source)
            self._cut(0)
            rows = min(source._cache_length, max(length - 1, 0))
            with self._guard.engine_calls:
                self._draft.reset()
                self._feeder.context.copy_rows(source._feeder.context, rows)
                self._draft.start_from(source._draft, length)
            self._tokens[:length] = source._tokens[:length]
            self._length, self._cache_length = length, rows

    def rewind(self, length: int) -> None:
        """Forget every token from index `length` on. Ends the current answer: `begin` the next one.

        Raises `InvalidArgument` unless 0 <= length <= `self.length`.
        """
        with self._guard.exclusive:
            self._guard.require_sound()
            length = index("length", length)
            if not 0 <= length <= self._length:
                raise InvalidArgument(
                    f"cannot rewind to {shown(length)}: the session holds {self._length} tokens"
                )
            if self._sampler is not None:
                self.stats.discarded += self._length - max(length, self._prompt_length)
            self._cut(length)

    def reset(self) -> None:
        """Clear all tokens and the poisoned state, by zeroing the caches."""
        with self._guard.exclusive:
            self._guard.require_open()
            self._cut(0)
            self._draft.reset()
            if self._guard.poisoned:
                self._feeder.context.zero()
                self._guard.poisoned = False

    def close(self) -> None:
        """Free the caches of target and draft. Idempotent."""
        with self._guard.exclusive:
            self._guard.closed = True
            self._sampler = None
            self._draft.close()
            self._feeder.context.close()

    def _append(self, ids: Sequence[int] | NDArray[np.integer]) -> None:
        self._guard.require_sound()
        added = token_ids(ids, self._feeder.vocab_size)
        end = self._length + len(added)
        if end > self.capacity:
            held = f" and the {self._length} before them" if self._length else ""
            reset = ", reset the session" if self._length else ""
            raise CapacityExceeded(
                f"{len(added)} tokens{held} pass the capacity of {self.capacity}: "
                f"shorten the prompt{reset}, or raise `capacity` in the recipe and build again"
            )
        self._tokens[self._length : end] = added
        self._length = end
        self._sampler = None

    @property
    def _behind(self) -> int:
        """How many tokens before the last one are not in the cache."""
        return self._length - self._cache_length - 1

    def _feeding_round(self, sampler: Sampler, *, prefill: bool) -> Round:
        """Feed what is not in the cache, the last token too, and commit the token that follows."""
        rows = self._feed(self._length, None if prefill else NOTHING)
        with self._phases.accept:
            outcome = self._judge(NOTHING, rows, sampler)
        return self._commit(NOTHING, rows, outcome, sampler, prefill=prefill)

    def _feed(self, end: int, judged: Proposal | None) -> Rows:
        """Feed the uncached tokens before index `end` in as many windows as they need; the draft sees each window.

        `judged`: None where they are a prompt, else what was proposed behind them, which is nothing.
        """
        draft, verify, clock = self._phases.draft, self._phases.verify, self._phases.clock
        observed, since = draft.seconds, clock()

        def observe(window: Window, start: int, count: int) -> None:
            nonlocal since
            ran = clock() - since
            with draft:
                features = kept_features(window, np.arange(count))
                self._draft.observe(
                    Verdict(start, features, count, judged, (), window.profile.width, 0.0, verify_seconds=ran)
                )
            since = clock()

        with verify:
            rows = self._feeder.feed(self._tokens[self._cache_length : end], self._cache_length, observe)
        verify.seconds -= draft.seconds - observed
        return rows

    def _propose(self, sampler: Sampler) -> Proposal:
        """Propose drafts for the rows that one window can judge."""
        behind = self._behind
        nodes = depth = self._feeder.judged_limit(self._cache_length) - 1 - behind
        depth = min(depth, self._left(sampler) - 1)
        if depth < 1:
            return NOTHING
        tokens = self._tokens[: self._length]
        return propose(self._draft, tokens, Room(depth, nodes), sampler, behind=behind)

    def _verify(self, proposal: Proposal) -> Rows:
        """Run the target over the last token and the drafts; the rows judge each draft and the token after them."""
        count, start = len(proposal.ids), self._cache_length
        if count == 0:
            return self._feeder.feed(self._tokens[start : self._length], start)
        # The drafts wait behind the committed tokens; they count only once committed.
        end = self._length + count
        self._tokens[self._length : end] = proposal.ids
        return self._feeder.judge(self._tokens[start:end], start, proposal.parents, behind=self._behind)

    def _judge(self, proposal: Proposal, rows: Rows, sampler: Sampler) -> Outcome:
        outcome = verify(proposal, self._feeder.top_ids(rows), lambda: self._feeder.logits(rows), sampler)
        limit = min(self.capacity + 1 - self._length, self._left(sampler)) - len(outcome.tokens)
        tail = forced_tail(self._draft, outcome.tokens, limit, sampler)
        return replace(outcome, tail=tail) if tail else outcome

    def _left(self, sampler: Sampler) -> int:
        """Return how many tokens the answer may still have."""
        most = sampler.params.max_tokens
        return self.capacity + 1 if most is None else self._prompt_length + most - self._length

    def _settle(self, proposal: Proposal, rows: Rows, outcome: Outcome) -> None:
        """Bring the accepted rows of a tree together in the cache and show the draft what stands."""
        phases, behind = self._phases, self._behind
        places = np.array((*range(behind + 1), *(behind + row for row in outcome.path)), dtype=np.int64)
        kept = len(places)
        if places[-1] != kept - 1:
            with self._guard.engine_calls:
                self._feeder.context.keep(self._cache_length, places)
        with phases.draft:
            self._draft.observe(
                Verdict(
                    start=self._cache_length,
                    features=kept_features(rows.window, places),
                    kept=kept,
                    proposal=proposal,
                    path=outcome.path,
                    width=rows.window.profile.width,
                    draft_seconds=phases.draft.seconds,
                    verify_seconds=phases.verify.seconds,
                )
            )

    def _commit(
        self, proposal: Proposal, rows: Rows, outcome: Outcome, sampler: Sampler, *, prefill: bool = False
    ) -> Round:
        """Move the length and books the round. The last emitted token and the tail stay uncached."""
        if self._trace is not None:
            logits, seed, position = self._feeder.logits(rows), self._seed, sampler.position
            self._trace(trace_round(rows, logits, proposal, outcome, seed=seed, position=position))
        tokens = (*outcome.tokens, *outcome.tail)
        self._cache_length = self._length + len(outcome.path)
        end = self._length + len(tokens)
        self._tokens[self._length : end] = tokens
        self._length = end
        sampler.commit(tokens)
        self.stats.count_round(
            prefill=prefill,
            proposed=len(proposal.ids),
            accepted=len(outcome.path),
            trials=trials(proposal, outcome.path),
            forced=len(outcome.tail),
        )
        self._phases.count(self.stats, prefill=prefill)
        return round_of(proposal, outcome, rows.window.profile.width)

    def _cut(self, length: int) -> None:
        self._sampler = None
        self._length = length
        self._cache_length = min(self._cache_length, max(length - 1, 0))
        self._draft.rewind(length)

    def _require_like(self, source: "Session") -> None:
        """Rows can only be copied between sessions with the same graphs and cache layout."""
        of_one_bundle = self.manifest is source.manifest or self.manifest == source.manifest
        pairs = ((self._feeder.context, source._feeder.context), (self._draft, source._draft))
        if not of_one_bundle or any(type(own) is not type(other) for own, other in pairs):
            raise InvalidArgument(
                "the other session is of another bundle or was opened in another way, expected the same `speculate` "
                "and `dynamic`, and both or neither in a batch: append the tokens instead"
            )

    def _require_answer(self) -> Sampler:
        self._guard.require_sound()
        if self._sampler is None:
            raise WrongState("no answer has begun since the tokens last changed: call begin before round")
        if self._length > self.capacity:
            raise CapacityExceeded(
                f"all {self.capacity} rows of the cache are in use: "
                "reset or rewind the session, or raise `capacity` in the recipe and build again"
            )
        return self._sampler
