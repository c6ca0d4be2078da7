"""How a pruned draft's directory is told from a whole checkpoint's; what it holds is for `draft_models.pruned`."""

import json
from pathlib import Path

FORMAT_KEY, FORMAT = "format", "specexport-pruned"
_CONFIG_NAME = "config.json"


def is_pruned(directory: Path) -> bool:
    """Whether `directory` says that it holds a pruned draft, which takes tables from its target."""
    try:
        config = json.loads((directory / _CONFIG_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get(FORMAT_KEY) == FORMAT
