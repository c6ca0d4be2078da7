"""One pool of CPU threads for the engines of a process.

A pool of ONNX Runtime spins for a while after each run, ready for the next. Target and draft run in turns: with a pool
each, the one that waits takes the cores of the one that works (SmolLM2-135M with EAGLE-3 on two cores: 20 tokens a
second with two pools, 43 with one).
"""

import os
from threading import Lock
from typing import Any

_LOCK = Lock()
_size: list[int] = []  # of the shared pool, once it is decided; 0 where the library refused to have one


def shares_threads(ort: Any, threads: int) -> bool:
    """Whether an engine of `threads` threads uses the shared pool. The first engine of a process decides its size."""
    with _LOCK:
        if not _size:
            _size.append(threads if _set_size(ort, threads) else 0)
        return _size[0] == threads


def usable_cores() -> int:
    """Cores this process may run on, not the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _set_size(ort: Any, threads: int) -> bool:
    try:
        ort.set_global_thread_pool_sizes(threads, 1)
    except Exception:  # its pools are made already, by someone else in this process
        return False
    return True
