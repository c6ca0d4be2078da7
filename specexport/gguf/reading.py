"""Makes a GGUF file's reader, and the `gguf` package's tables of tensor names, once per load.

The file is opened for the config and again for the weights, and every token of its vocabulary is parsed each time;
transformers rebuilds the table of names once per module of the model.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from unittest.mock import patch

import gguf


@contextmanager
def gguf_read_once() -> Iterator[None]:
    """While the block runs, readers and name tables are made once per file and architecture. Both are read-only."""
    with (
        patch.object(gguf, "GGUFReader", cache(gguf.GGUFReader)),
        patch.object(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map)),
    ):
        yield
