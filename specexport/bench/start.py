"""How long a fresh process takes from opening a bundle to its first token."""

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from specexport.bench.processes import run_probe

_PROBE = "specexport.bench.start_probe"
_REPEATS = 3


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Milliseconds by step, medians of a few processes; the files are in the system's page cache by then."""

    import_ms: float  # Python's own, before the bundle is opened
    open_ms: float  # hashes checked, weights mapped and packed
    session_ms: float  # buffers, and the largest windows run once
    text_ms: float  # the tokenizer, and the prompt's ids
    first_ms: float  # the prompt to its first token

    @property
    def open_to_first_ms(self) -> float:
        return self.open_ms + self.session_ms + self.text_ms + self.first_ms

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "open_to_first_ms": self.open_to_first_ms,
            "start_ms": {
                "import": self.import_ms,
                "open": self.open_ms,
                "session": self.session_ms,
                "text": self.text_ms,
                "first": self.first_ms,
            },
        }


def measure_start(bundle: Path, threads: int | None = None) -> StartTimes:
    """Answers the first check prompt of the bundle. Raises `EngineFailed`."""
    found = [run_probe(_PROBE, bundle, threads) for _ in range(_REPEATS)]
    return StartTimes(**{f"{step}_ms": median(each[step] for each in found) for step in found[0]})
