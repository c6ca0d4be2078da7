"""What a recipe leaves to its checkpoint: the capacity, and prompts for the check that any tokenizer takes.

`Recipe.left_to_checkpoint` names the keys. What comes back states them.
"""

from collections.abc import Mapping

from pydantic import ValidationError

from specexport.checkpoints.check_prompts import Answering, open_codec
from specexport.checkpoints.loading import known_positions
from specexport.errors import CheckpointUnsupported
from specexport.recipe.messages import explain
from specexport.recipe.naming import naming_source
from specexport.recipe.schema import CHECK_TEXT, Prompt, Recipe


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
