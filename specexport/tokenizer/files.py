"""Writes the files of a bundle's tokenizer, with what text in and out needs and no more, and describes them."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from specexport.cache.entries import file_sha256
from specexport.checkpoints.vocabulary import TOKENIZER_FILE
from specruntime.manifest.schema import TokenizerSpec

TEMPLATE_FILE = "chat_template.jinja"
CONFIG_FILE = "tokenizer_config.json"


def save_tokenizer(
    tokenizer: Tokenizer, directory: Path, *, chat_template: str | None, **named_tokens: str | None
) -> None:
    """Write tokenizer.json, tokenizer_config.json and, where there is one, the chat template.

    `named_tokens`: `bos_token`, `eos_token` and the like. Truncation and padding belong to batches of training data; a
    bundle's tokenizer has neither.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.save(str(directory / TOKENIZER_FILE))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{name: token for name, token in named_tokens.items() if token is not None},
    }
    (directory / CONFIG_FILE).write_text(
        json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    if chat_template is not None:
        (directory / TEMPLATE_FILE).write_text(chat_template, encoding="utf-8")


def describe_tokenizer(root: Path, directory: str) -> TokenizerSpec:
    """Return the tokenizer in `root/directory`, with paths relative to `root`."""
    place = root / directory
    config: dict[str, Any] = json.loads((place / CONFIG_FILE).read_text(encoding="utf-8"))
    stated = {name: token_text(value) for name, value in config.items() if name.endswith("_token")}
    named = {name: token for name, token in stated.items() if token is not None}
    template = f"{directory}/{TEMPLATE_FILE}" if (place / TEMPLATE_FILE).is_file() else None
    return TokenizerSpec(
        file=f"{directory}/{TOKENIZER_FILE}",
        sha256=file_sha256(place / TOKENIZER_FILE),
        chat_template=template,
        bos_token=named.pop("bos_token", None),
        eos_token=named.pop("eos_token", None),
        other_tokens=named,
    )


def token_text(stated: Any) -> str | None:
    """Return the text of a token stored as text, or as an object with its text under `content`; None for anything else,
    as flags (`add_bos_token`) are."""
    text = stated.get("content") if isinstance(stated, dict) else stated
    return text if isinstance(text, str) else None
