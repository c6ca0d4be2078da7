"""Silence for libraries that write progress bars and advice to stderr while a checkpoint loads."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.utils.tqdm import are_progress_bars_disabled
from huggingface_hub.utils.tqdm import disable_progress_bars as disable_hub_bars
from huggingface_hub.utils.tqdm import enable_progress_bars as enable_hub_bars
from transformers.utils import logging as transformers_logging


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing below ERROR from transformers, optimum and warnings, and no progress bars, while the block runs."""
    level = transformers_logging.get_verbosity()
    had_bars = transformers_logging.is_progress_bar_enabled()
    had_hub_bars = not are_progress_bars_disabled()
    optimum_logger = logging.getLogger("optimum")
    optimum_level = optimum_logger.level
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    optimum_logger.setLevel(logging.ERROR)
    disable_hub_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(level)
        optimum_logger.setLevel(optimum_level)
        if had_bars:
            transformers_logging.enable_progress_bar()
        if had_hub_bars:
            enable_hub_bars()
