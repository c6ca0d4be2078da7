"""How one build runs: whether it repeats what the cache holds, and who hears how far it is."""

from collections.abc import Callable
from dataclasses import dataclass

Announce = Callable[[str], None]
Progress = Callable[[str, int, int], None]


def _silent(stage: str) -> None: ...


@dataclass(frozen=True)
class BuildContext:
    """What every stage of a build is given.

    `force`: no stage takes its result from the cache. `announce` hears the name of each stage as it begins, `steps` how
    far an engine compiler is (phase, done, in all).
    """

    force: bool = False
    announce: Announce = _silent
    steps: Progress | None = None


DEFAULT = BuildContext()
