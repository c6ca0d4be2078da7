"""What launches made ONNX Runtime's own memory grow to: a large one is run at open, so that later ones find it there.

The library keeps what a launch took for its intermediate results and never gives it back. A launch of fewer tokens and
fewer rows of logits takes no more, and its first run is no slower for not having been run before.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from specruntime.manifest import GraphSpec, Profile


@dataclass(frozen=True, slots=True)
class _Launch:
    """How much a launch computes on the session of one graph file, whose memory is its own."""

    file: str
    tokens: int
    rows: int  # of logits

    def covers(self, other: "_Launch") -> bool:
        return self.file == other.file and self.tokens >= other.tokens and self.rows >= other.rows


@dataclass(frozen=True, slots=True)
class GrownMemory:
    """The launches that memory was grown for; an engine's contexts and batches share it."""

    _launches: set[_Launch] = field(default_factory=set)

    def grow(
        self, spec: GraphSpec, sizes: Iterable[tuple[Profile, int]], run: Callable[[Profile, int], None]
    ) -> None:
        """Runs those of the launches, profiles with their numbers of sequences, that no earlier one covers."""
        for profile, size in sorted(sizes, key=lambda each: each[0].width * each[1], reverse=True):
            launch = _Launch(profile.file or spec.file, profile.width * size, profile.rows * size)
            if not any(done.covers(launch) for done in tuple(self._launches)):
                run(profile, size)
                self._launches.add(launch)
