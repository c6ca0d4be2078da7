"""Makes transformers read a GGUF file once per load, and in silence.

transformers 5.24 opens the file for the config and again for the weights, parses every token each time, and rebuilds
gguf's table of tensor names once per module of the model: two thirds of the time that a small model takes to load.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import gguf
from tqdm.std import tqdm  # type: ignore[import-untyped]
from transformers import modeling_gguf_pytorch_utils


def _no_bar(*args: Any, **options: Any) -> Any:
    """The reader makes its progress bar directly, past the switch of transformers' logging."""
    return tqdm(*args, **{**options, "disable": True})


@contextmanager
def gguf_read_once() -> Iterator[None]:
    """While the block runs, readers and name tables are made once per file and architecture. Both are read-only."""
    with (
        patch.object(gguf, "GGUFReader", cache(gguf.GGUFReader)),
        patch.object(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map)),
        patch.object(modeling_gguf_pytorch_utils, "tqdm", _no_bar),
    ):
        yield
