"""The files of a bundle's tokenizer, and what they say of its tokens.

Keeps them in the cache, writes them with what text in and out needs and no more, and describes them; real against
padded size, the ids that end an answer, and whether two models share one table.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from specexport.cache.code_digest import code_digest
from specexport.cache.entries import cache_directory, cached_entry, file_sha256, text_sha256
from specexport.errors import CheckpointUnsupported, TokenizerMismatch
from specruntime.manifest.schema import TokenizerSpec

TEMPLATE_FILE = "chat_template.jinja"
CONFIG_FILE = "tokenizer_config.json"
_FILES = "files"
_NOTES = "notes.txt"
TOKENIZER_FILE = "tokenizer.json"
# Special tokens with which chat models end their turn. Checkpoints converted from elsewhere often name only one end
# token; an instruct model that runs past its turn end never stops.
_TURN_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<|endofturn|>",
    "<|return|>",
)


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


@dataclass(frozen=True)
class TokenizerFiles:
    """`directory` holds tokenizer.json, tokenizer_config.json and, for chat models, chat_template.jinja.

    `directory` is None where the checkpoint has no tokenizer. `notes` are lines for the build to say after the
    checkpoint's name: files of one content are kept once, wherever they lie.
    """

    directory: Path | None
    notes: tuple[str, ...] = ()


def tokenizer_files(key: str, write: Callable[[Path], tuple[str, ...]]) -> TokenizerFiles:
    """Return what `write` puts into a directory, and its notes, kept in the cache: converting a vocabulary takes
    seconds.

    `key` names the checkpoint; a change of this code or of the libraries makes another entry.
    """
    code = code_digest(__name__, write.__module__)
    place = cache_directory() / "tokenizers" / text_sha256(f"{key} {code}")

    def fill(entry: Path) -> None:
        notes = write(entry / _FILES)
        (entry / _NOTES).write_text("\n".join(notes), encoding="utf-8")

    found = cached_entry(place, fill)
    notes = (line for line in (found / _NOTES).read_text(encoding="utf-8").split("\n") if line)
    has_tokenizer = (found / _FILES / TOKENIZER_FILE).is_file()
    return TokenizerFiles(found / _FILES if has_tokenizer else None, tuple(notes))


@lru_cache(maxsize=2)
def token_table(tokenizer_directory: Path) -> Mapping[int, str]:
    """Token by id, added tokens included."""
    tokenizer = Tokenizer.from_file(str(tokenizer_directory / TOKENIZER_FILE))
    return {index: token for token, index in tokenizer.get_vocab(with_added_tokens=True).items()}


def real_vocab_size(tokenizer_directory: Path | None, rows: int) -> int:
    """Ids that may be emitted: the tokenizer's, as far as the LM head has rows for them; all rows without one."""
    if tokenizer_directory is None:
        return rows
    return min(max(token_table(tokenizer_directory)) + 1, rows)


def end_token_ids(
    tokenizer_directory: Path | None, stated: Iterable[int | list[int] | None], rows: int
) -> tuple[int, ...]:
    """Return the ids that end an answer: those `stated` by the configs, the tokenizer's, and turn ends of its chat
    template.

    Raises `CheckpointUnsupported` for a stated id outside the vocabulary.
    """
    ids: list[int] = []
    for item in stated:
        ids += item if isinstance(item, list) else [] if item is None else [item]
    if tokenizer_directory is not None:
        ids += _tokenizer_ends(tokenizer_directory)
    for index in ids:
        if not 0 <= index < rows:
            raise CheckpointUnsupported(
                f"eos_token_id: found {index}, expected 0..{rows - 1}; correct the checkpoint's generation_config.json"
            )
    return tuple(dict.fromkeys(ids))


def _tokenizer_ends(directory: Path) -> list[int]:
    ids = {token: index for index, token in token_table(directory).items()}
    config: dict[str, Any] = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    template_file = directory / "chat_template.jinja"
    template = template_file.read_text(encoding="utf-8") if template_file.is_file() else ""
    stated = config.get("eos_token")
    stated = stated.get("content") if isinstance(stated, dict) else stated
    candidates = [stated, *(token for token in _TURN_ENDS if token in template)]
    return [ids[token] for token in candidates if token in ids]


def require_shared_vocabulary(
    target: tuple[str, Path | None, int], draft: tuple[str, Path | None, int]
) -> None:
    """Compare the token tables of (name, tokenizer directory, real size) pairs, token by token.

    Padded tails may differ: they hold no tokens. Raises `TokenizerMismatch` naming both models and the first
    token that differs.
    """
    target_name, target_directory, target_size = target
    draft_name, draft_directory, draft_size = draft
    if (target_directory is None) is not (draft_directory is None):
        sides = (f"target {target_name}", f"draft {draft_name}")
        without, having = sides if target_directory is None else reversed(sides)
        raise TokenizerMismatch(
            f"{without} has no tokenizer and {having} has one, so their tokens cannot be compared; "
            "give both a tokenizer"
        )
    if target_directory is None or draft_directory is None:
        if target_size != draft_size:
            raise TokenizerMismatch(
                f"draft {draft_name} and target {target_name}: without two tokenizers to compare, "
                f"expected equal vocabularies, found {draft_size} and {target_size}; give both a tokenizer"
            )
        return
    target_table, draft_table = token_table(target_directory), token_table(draft_directory)
    for index in range(max(target_size, draft_size)):
        expected = target_table.get(index) if index < target_size else None
        found = draft_table.get(index) if index < draft_size else None
        if expected != found:
            raise TokenizerMismatch(
                f"draft {draft_name} has another tokenizer than target {target_name}: token {index} is "
                f"{_name(found)} in the draft and {_name(expected)} in the target; choose a draft of the same family"
            )


def _name(token: str | None) -> str:
    return "missing" if token is None else repr(token)
