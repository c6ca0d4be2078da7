"""Finding what can build a bundle from checkpoints: distributions announce it by entry point.

The runtime never imports a builder by name. A builder is a function of keyword arguments `model`,
`speculative_config`, `dtype` and `max_model_len` (all but the first may be None) that returns the bundle's path.
"""

from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from specruntime.errors import BackendMissing

GROUP = "specruntime.builders"


def build_bundle(
    model: str, speculative_config: Mapping[str, Any] | None, dtype: str | None, max_model_len: int | None
) -> Path:
    """The path of a bundle that the first builder installed here makes or has made of these.

    Raises `BackendMissing` where none is installed, and whatever the builder raises.
    """
    found = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    if not found:
        raise BackendMissing(
            f"{model} is no bundle (a directory with manifest.json), and nothing installed here can build one of it: "
            "install specexport, or build the bundle on another host with `specexport build`"
        )
    builder = found[0].load()
    built = builder(
        model=model, speculative_config=speculative_config, dtype=dtype, max_model_len=max_model_len
    )
    return Path(built)
