"""Token tables: real against padded size, the ids that end an answer, and whether two models share one table."""

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from specexport.errors import CheckpointUnsupported, TokenizerMismatch

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
