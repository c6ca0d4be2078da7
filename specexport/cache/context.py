"""Holds the settings of one build: whether it repeats what the cache holds, and callbacks for its progress."""

from collections.abc import Callable
from dataclasses import dataclass

Announce = Callable[[str], None]
Progress = Callable[[str, int, int], None]


def _silent(stage: str) -> None: ...


@dataclass(frozen=True)
class BuildContext:
    """Settings passed to every stage of a build.

    `force`: no stage takes its result from the cache. `announce` is called with each stage's name,
    `steps` with the progress of an engine compiler (phase, done, in all).
    """

    force: bool = False
    announce: Announce = _silent
    steps: Progress | None = None


DEFAULT = BuildContext()
