"""What is costly to make is made once in a test run, by the worker that needs it first; the others wait for it."""

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path


def made_once(place: Path, make: Callable[[Path], object]) -> Path:
    """`place`, made by `make(path)` under a lock and then renamed, so that it is there whole or not at all."""
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f"{place.name}.partial")
    with place.with_name(f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            shutil.rmtree(partial, ignore_errors=True)
            make(partial)
            partial.rename(place)
    return place
