"""What the manifest says of a bundle's tokenizer files."""

import json
from pathlib import Path
from typing import Any

from specexport.sources.cache import file_sha256
from specexport.vocabulary import TOKENIZER_FILE
from specruntime.manifest import TokenizerSpec

TEMPLATE_FILE = "chat_template.jinja"
_CONFIG_FILE = "tokenizer_config.json"


def describe_tokenizer(root: Path, directory: str) -> TokenizerSpec:
    """The tokenizer in `root/directory`, with paths relative to `root`."""
    place = root / directory
    config: dict[str, Any] = json.loads((place / _CONFIG_FILE).read_text(encoding="utf-8"))
    template = f"{directory}/{TEMPLATE_FILE}" if (place / TEMPLATE_FILE).is_file() else None
    return TokenizerSpec(
        file=f"{directory}/{TOKENIZER_FILE}",
        sha256=file_sha256(place / TOKENIZER_FILE),
        chat_template=template,
        bos_token=_token_text(config.get("bos_token")),
        eos_token=_token_text(config.get("eos_token")),
    )


def _token_text(stated: Any) -> str | None:
    """A token is stored as text, or as an object with its text under `content`."""
    text = stated.get("content") if isinstance(stated, dict) else stated
    return str(text) if text is not None else None
