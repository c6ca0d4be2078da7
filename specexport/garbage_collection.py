"""Python's cycle collector during a build: off, but for the calls that free a whole graph."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Turn the collector off in the block. Importing torch and tracing make millions of objects that stay; walking them
    for cycles frees nothing.

    What is worth freeing is freed by `gc.collect()` where it goes out of use.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
