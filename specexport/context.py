"""What a build runs in: its settings, silence of the libraries, and Python's cycle collector off.

Imported with the command line, so it imports no library itself.
"""

import gc
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
_LOGGERS = ("optimum", "torch.onnx", "torch.onnx._internal.exporter._registration")


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and nothing below ERROR from transformers, optimum, torch.onnx and warnings in the block.

    They write progress bars and advice to stderr while a checkpoint loads.
    """
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled
    from huggingface_hub.utils.tqdm import disable_progress_bars as disable_hub_bars
    from huggingface_hub.utils.tqdm import enable_progress_bars as enable_hub_bars
    from transformers.utils import logging as transformers_logging

    level = transformers_logging.get_verbosity()
    had_bars = transformers_logging.is_progress_bar_enabled()
    had_hub_bars = not are_progress_bars_disabled()
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    disable_hub_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(level)
        for logger, restored in zip(loggers, levels, strict=True):
            logger.setLevel(restored)
        if had_bars:
            transformers_logging.enable_progress_bar()
        if had_hub_bars:
            enable_hub_bars()


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
