"""Fits a recipe to its checkpoint: the capacity and the check prompts that it leaves out, and prompts that it states.

`Recipe.left_to_checkpoint` names the keys. Prompts are validated when a bundle is built rather than when it is checked.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from specexport.checkpoints.loading import known_positions
from specexport.errors import CheckpointUnsupported
from specexport.graph.files import GraphFacts
from specexport.recipe.messages import explain
from specexport.recipe.schema import CHECK_TEXT, Check, Prompt, Recipe
from specexport.recipe.sources import naming_source
from specexport.recipe.weights import RunningText
from specexport.tokenizer.files import describe_tokenizer
from specruntime.errors import SpecError
from specruntime.text.codec import TextCodec


class Answering(Protocol):
    """A model that prompts are for: a canonical graph, or a checkpoint before its weights are read."""

    @property
    def name(self) -> str: ...

    @property
    def tokenizer(self) -> Path | None: ...

    @property
    def facts(self) -> GraphFacts: ...


def require_usable_prompts(check: Check, target: Answering) -> None:
    """Raise `CheckpointUnsupported` naming the first prompt that the target of the bundle could not answer."""
    codec = open_codec(target)
    if codec is None and any(isinstance(prompt, str) for prompt in check.prompts):
        raise CheckpointUnsupported(
            f"found text, but {target.name} has no tokenizer; write the prompts as lists of token ids",
            key="check.prompts",
        )
    for number, prompt in enumerate(check.prompts):
        place = f"check.prompts[{number}]"
        _require_fitting(place, _encode(place, prompt, codec, check, target), check, target)


def open_codec(target: Answering) -> TextCodec | None:
    """Return the target's tokenizer; None where it has none."""
    if (place := target.tokenizer) is None:
        return None
    return TextCodec.open(place.parent, describe_tokenizer(place.parent, place.name))


def encode_text(key: str, text: RunningText, target: Answering) -> list[int]:
    """Return the tokens of a running text that the recipe gives under `key`.

    Raises `CheckpointUnsupported` for a checkpoint without tokenizer or a text of less than two tokens.
    """
    codec = open_codec(target)
    if codec is None:
        part = key.partition(".")[0]
        raise CheckpointUnsupported(
            f"found text, but {target.name} has no tokenizer; leave {part} out", key=f"{key}.text"
        )
    ids = codec.encode(text.text)[: text.tokens]
    if len(ids) < 2:
        raise CheckpointUnsupported(
            f"found {len(ids)} tokens, expected at least 2; write more", key=f"{key}.text"
        )
    return ids


def _encode(
    place: str, prompt: Prompt, codec: TextCodec | None, check: Check, target: Answering
) -> list[int]:
    if not isinstance(prompt, str):
        return list(prompt)
    assert codec is not None, "refused above"
    if not check.chat:
        return codec.encode(prompt)
    if not codec.has_chat_template:
        raise CheckpointUnsupported(
            f"found true, but {target.name} has no chat template; set check.chat: false", key="check.chat"
        )
    try:
        return codec.chat([{"role": "user", "content": prompt}])
    except SpecError as error:
        raise CheckpointUnsupported(f"{error}; change it, or set check.chat: false", key=place) from None


def _require_fitting(place: str, ids: list[int], check: Check, target: Answering) -> None:
    size, capacity = target.facts.vocab_size, target.facts.capacity
    if not ids:
        raise CheckpointUnsupported(
            "found text without any token, expected at least one; write more", key=place
        )
    if (outside := next((token for token in ids if token >= size), None)) is not None:
        raise CheckpointUnsupported(
            f"found token id {outside}, expected 0..{size - 1}, the vocabulary of {target.name}; correct it",
            key=place,
        )
    if len(ids) > (most := capacity - check.max_new_tokens):
        raise CheckpointUnsupported(
            f"found {len(ids)} tokens, expected at most {most}: capacity {capacity} less "
            f"check.max_new_tokens {check.max_new_tokens}; shorten it or raise capacity",
            key=place,
        )


def fit_capacity(recipe: Recipe, stated_positions: Mapping[str, int | None] | None = None) -> Recipe:
    """`recipe` with a capacity that target and draft model have positions for.

    `stated_positions` by side ("target", "draft") where they are known; else the configs are read. Raises as
    `load_checkpoint`.
    """
    if "capacity" not in recipe.left_to_checkpoint:
        return recipe
    known = dict(stated_positions) if stated_positions is not None else _read_positions(recipe)
    side, positions = min(
        ((side, positions) for side, positions in known.items() if positions is not None),
        key=lambda pair: pair[1],
        default=("target", recipe.capacity),
    )
    stated = recipe.model_dump(exclude_unset=True) | {"capacity": min(positions, recipe.capacity)}
    try:
        return Recipe.model_validate(stated)
    except ValidationError as error:
        (line, *_) = explain(error, Recipe)
        raise CheckpointUnsupported(
            f"this model knows {positions} positions, so capacity cannot be more: {line}",
            key=f"{side}.source",
        ) from None


def _read_positions(recipe: Recipe) -> dict[str, int | None]:
    known = {}
    for side, spec in (("target", recipe.target), ("draft", recipe.draft.checkpoint)):
        if spec is not None:
            with naming_source(side):
                known[side] = known_positions(spec)
    return known


def fit_check(recipe: Recipe, target: Answering) -> Recipe:
    """`recipe` with check prompts that `target` can answer within its capacity."""
    if "check.prompts" not in recipe.left_to_checkpoint:
        return recipe
    check = recipe.check
    check = check.model_copy(update={"prompts": (_prompt(target, check.max_new_tokens, check.chat),)})
    return recipe.model_copy(update={"check": check})


def _prompt(target: Answering, answer: int, chat: bool) -> Prompt:
    """Return the usual sentence, or the tokens of its beginning where it is too long; ids without a tokenizer."""
    most, codec = target.facts.capacity - answer, open_codec(target)
    if codec is None:
        return tuple(number % target.facts.vocab_size for number in range(1, min(most, 16) + 1))
    ids = codec.encode(CHECK_TEXT)
    return CHECK_TEXT if chat or len(ids) <= most else tuple(ids[:most])
