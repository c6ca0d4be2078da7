"""Slots that are lanes of batches: what they decode in one step goes through the engine together.

More slots than one batch holds are several batches, one step of which follows the other.
"""

from collections.abc import Iterator, Sequence

from specruntime.batches import Batch
from specruntime.batches.speculation import Speculation
from specruntime.bundle import LoadedBundle
from specruntime.drafts import Draft
from specruntime.drafts.wrappers import DraftSwitch
from specruntime.errors import EngineFailed, InvalidArgument
from specruntime.serving.prefixes import PrefixCaching
from specruntime.serving.session_stepper import SessionStepper, Slot
from specruntime.serving.stepper import Stepper, Turn, Work
from specruntime.session import Session


class BatchStepper(SessionStepper):
    """A `SessionStepper` whose turns wait for each other at the engine."""

    def __init__(
        self,
        bundle: LoadedBundle,
        slots: int,
        *,
        speculate_up_to: int | None = None,
        prefix_caching: PrefixCaching = "exact",
    ) -> None:
        """With more than `speculate_up_to` decoding rows in a launch no row drafts; None: decided from measured steps.

        Raises as `SessionStepper`, and `InvalidArgument` for a limit below 0.
        """
        if speculate_up_to is not None and speculate_up_to < 0:
            raise InvalidArgument(f"speculate_up_to is {speculate_up_to}, expected 0 or more rows")
        self.batches: list[Batch] = []
        self.speculation = Speculation(speculate_up_to)
        self._switches: list[DraftSwitch] = []
        self._size = bundle.manifest.target.batch
        super().__init__(bundle, slots, prefix_caching=prefix_caching)
        graphs = [bundle.manifest.target, bundle.manifest.draft.own_graph]
        # Beyond it a cache has no room for the stale row of a launch that its neighbours share.
        self._most_kept = min(graph.capacity for graph in graphs if graph is not None) - self._chunk

    def choose(self, free: Sequence[int], work: Work) -> int:
        """While others are at work, the slot that is nearest to one of them: neighbours share their launches."""
        busy = [number for number in range(self.slots) if number not in free]
        if not busy:
            return super().choose(free, work)
        return min(free, key=lambda number: min(self._distance(number, other) for other in busy))

    def evict(self, slot: int) -> None:
        super().evict(slot)
        session = self._slots[slot].session
        if session.length > self._most_kept:
            session.reset()
        self._vacate(slot)

    def close(self) -> None:
        for batch in self.batches:
            batch.close()

    def _make_ready(self, slot: Slot) -> None:
        self._vacate(slot.number)  # a launch of its neighbours may have failed since it was emptied

    def _vacate(self, slot: int) -> None:
        batch, lane = divmod(slot, self._size)
        self.batches[batch].vacate(lane)

    def _distance(self, slot: int, other: int) -> tuple[bool, int]:
        return slot // self._size != other // self._size, abs(slot - other)

    def _turns(self, due: Sequence[Slot]) -> Iterator[Turn]:
        for number, batch in enumerate(self.batches):
            yield from self._step(batch, [slot for slot in due if slot.number // self._size == number])

    def _step(self, batch: Batch, due: Sequence[Slot]) -> Iterator[Turn]:
        decoding = sum(slot.decoding for slot in due)
        drafting = self.speculation.allows(decoding)
        for slot in due:
            slot.allow_drafts(drafting)
        calls = {slot.number % self._size: slot.prepare(self._chunk, self._answer) for slot in due}
        tokens, before = 0, batch.seconds
        for _, turn in batch.turns(calls):
            tokens += len(turn.round.tokens) if turn.round is not None else 0
            yield turn
        if decoding and decoding == len(due):  # a step that fed a prompt too says little
            self.speculation.learn(decoding, drafting, tokens, batch.seconds - before)

    def _new_session(self, number: int) -> tuple[Session, DraftSwitch]:
        batch, lane = divmod(number, self._size)
        if number < len(self._slots):
            raise EngineFailed(f"slot {number} cannot be reset, and its batch has no other caches for it")
        if batch == len(self.batches):
            count = min(self._size, self.slots - number)
            self.batches.append(self._bundle.new_batch(count, adapt=self._switched))
        return self.batches[batch].sessions[lane], self._switches[number]

    def _switched(self, draft: Draft) -> Draft:
        self._switches.append(DraftSwitch(draft))
        return self._switches[-1]


def stepper_for(
    bundle: LoadedBundle,
    slots: int,
    *,
    workers: int = 1,
    speculate_up_to: int | None = None,
    prefix_caching: PrefixCaching = "exact",
) -> Stepper:
    """Batches where the bundle was built for some and there are slots to fill them; else sessions.

    `workers` above 1 asks for sessions in as many threads. Raises as `SessionStepper`.
    """
    batched = bundle.manifest.target.batch > 1 and slots > 1 and workers == 1
    if batched:
        return BatchStepper(bundle, slots, speculate_up_to=speculate_up_to, prefix_caching=prefix_caching)
    if speculate_up_to is not None:
        raise InvalidArgument(
            f"speculate_up_to is {speculate_up_to}, but nothing is batched here: it needs a bundle built with `batch` "
            "above 1, more than one slot, and one worker"
        )
    return SessionStepper(bundle, slots, workers=workers, prefix_caching=prefix_caching)
