"""How many processor cores there are for us."""

import os


def usable_cores() -> int:
    """Cores this process may run on, not the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
