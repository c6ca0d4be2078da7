"""Writes the files of a bundle's tokenizer, with what text in and out needs and no more, and describes them."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from specexport.sources.cache import file_sha256
from specexport.vocabulary import TOKENIZER_FILE
from specruntime.manifest import TokenizerSpec

TEMPLATE_FILE = "chat_template.jinja"
CONFIG_FILE = "tokenizer_config.json"
_TOKEN_NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def save_tokenizer(
    tokenizer: Tokenizer, directory: Path, *, chat_template: str | None, **named_tokens: str | None
) -> None:
    """Writes tokenizer.json, tokenizer_config.json and, where there is one, the chat template.

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
    """The tokenizer in `root/directory`, with paths relative to `root`."""
    place = root / directory
    config: dict[str, Any] = json.loads((place / CONFIG_FILE).read_text(encoding="utf-8"))
    named = {name: token for name, stated in _named_tokens(config).items() if (token := _token_text(stated))}
    template = f"{directory}/{TEMPLATE_FILE}" if (place / TEMPLATE_FILE).is_file() else None
    return TokenizerSpec(
        file=f"{directory}/{TOKENIZER_FILE}",
        sha256=file_sha256(place / TOKENIZER_FILE),
        chat_template=template,
        bos_token=named.pop("bos_token", None),
        eos_token=named.pop("eos_token", None),
        other_tokens=named,
    )


def _named_tokens(config: dict[str, Any]) -> dict[str, Any]:
    """The special tokens that transformers gives to chat templates by name."""
    named = {f"{name}_token": config.get(f"{name}_token") for name in _TOKEN_NAMES}
    for key in ("extra_special_tokens", "model_specific_special_tokens"):
        own = config.get(key)
        named |= own if isinstance(own, dict) else {}
    return named


def _token_text(stated: Any) -> str | None:
    """A token is stored as text, or as an object with its text under `content`."""
    text = stated.get("content") if isinstance(stated, dict) else stated
    return str(text) if text is not None else None
