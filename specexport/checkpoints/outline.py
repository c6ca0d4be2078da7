"""What a recipe's checkpoints are before their weights are read, and every refusal that this is enough for.

Owns the order: config, tokenizer, shapes, capacity, vocabularies, prompts. Whether weights fit the config, and whether
a graph computes what PyTorch computes, is the build's to find.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PretrainedConfig

from specexport.checkpoints.address import parse_address
from specexport.checkpoints.fitting import encode_text, fit_capacity, fit_check, require_usable_prompts
from specexport.checkpoints.loading import (
    byte_tokenizer,
    gguf_read_once,
    positions_of,
    read_config,
    require_positions,
    stored_tokenizer,
)
from specexport.checkpoints.local import is_pruned
from specexport.checkpoints.locate import locate, locate_outline
from specexport.checkpoints.refusals import require_language_model
from specexport.context import quiet
from specexport.errors import CheckpointUnsupported
from specexport.export import Skeleton, check_config
from specexport.graph.files import GraphFacts
from specexport.recipe.schema import ModelSource, NoiseSource, RandomSource, Recipe
from specexport.recipe.sources import naming_source
from specexport.tokenizer.files import TokenizerFiles, real_vocab_size, require_shared_vocabulary


@dataclass(frozen=True)
class Outline:
    """One checkpoint: `facts` are those of the graph that it will become, `tokenizer` a directory of files, `notes`
    lines for the build to say after its name."""

    name: str
    skeleton: Skeleton
    tokenizer: Path | None
    facts: GraphFacts
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Stated:
    """A checkpoint's small files, read."""

    name: str
    config: PretrainedConfig
    tokenizer: TokenizerFiles
    trust_remote_code: bool


def outline_recipe(recipe: Recipe, *, weights: bool = True) -> tuple[Recipe, dict[str, Outline]]:
    """`recipe` with all that it leaves to its checkpoints, and these: "target", and "draft" where a model drafts.

    A checkpoint without a config of its own (noise on the target, a pruned copy of it) has no outline. Without
    `weights` none are fetched where they are files of their own.

    Raises `SourceError`, `CheckpointUnsupported` or `TokenizerMismatch` naming the key of the recipe to change.
    """
    stated = {}
    for side, spec in (("target", recipe.target), ("draft", recipe.draft.checkpoint)):
        if spec is not None:
            with naming_source(side), quiet(), gguf_read_once():
                if (found := _read(spec, weights)) is not None:
                    stated[side] = found
    recipe = fit_capacity(recipe, {side: positions_of(found.config) for side, found in stated.items()})
    outlines = {side: _outline(recipe, side, found) for side, found in stated.items()}
    if "target" in outlines and "draft" in outlines:
        target, draft = outlines["target"], outlines["draft"]
        require_shared_vocabulary(
            (target.name, target.tokenizer, target.facts.vocab_size),
            (draft.name, draft.tokenizer, draft.facts.vocab_size),
        )
    if "target" in outlines:
        recipe = fit_check(recipe, outlines["target"])
        require_usable_prompts(recipe.check, outlines["target"])
        if recipe.fidelity is not None:
            encode_text("fidelity", recipe.fidelity, outlines["target"])
        known = outlines["target"].skeleton.layout
        with naming_source("draft"):
            recipe.draft.check(outlines["target"].name, None if known is None else known.layers)
    for side, outline in outlines.items():
        _require_whole_blocks(recipe, side, outline)
    return recipe, outlines


_BLOCKS = (16, 32, 64, 128)


def _require_whole_blocks(recipe: Recipe, side: str, outline: Outline) -> None:
    """Raise `CheckpointUnsupported` for a block that does not divide the rows of a layer that needs whole ones."""
    shape, weights, engine = outline.skeleton, recipe.weights_of(side), recipe.engine_weights
    if weights is not None:
        plan = weights.plan()
        parts = ((plan.linear, shape.linear_inputs), (plan.lm_head, shape.head_inputs))
        sizes = [
            size
            for part, inputs in parts
            if part.format != "fp32" and part.activations == "fine"
            for size in inputs
        ]
        key = "weights.block" if weights is recipe.weights else f"{side}.weights.block"
        _require_dividing(key, weights.block, sizes, outline.name, "choose activations blocks")
    elif engine is not None and side == "target" and engine.block_size is not None:
        blocks = _BLOCKS[1:] if engine.format == "int4-awq" else ()
        _require_dividing(
            "weights.block", engine.block_size, shape.linear_inputs, outline.name, "choose format fp8", blocks
        )


def _require_dividing(
    key: str, block: int, sizes: Sequence[int], name: str, cure: str, blocks: Sequence[int] = _BLOCKS
) -> None:
    fitting = [each for each in blocks if not any(size % each for size in sizes)]
    if size := next((size for size in sizes if size % block), None):
        cure = f"choose {' or '.join(map(str, fitting))}" if fitting else cure
        raise CheckpointUnsupported(
            f"found {block}, expected one that divides {size}, the inputs of layers of {name}; {cure}",
            key=key,
        )


def _read(spec: ModelSource, weights: bool) -> _Stated | None:
    if isinstance(spec.source, NoiseSource):
        return None
    if isinstance(spec.source, RandomSource):
        from specexport.checkpoints.random_model import random_config, random_name

        name, config = random_name(spec.source.random), random_config(spec.source.random)
        require_language_model(name, config)
        return _Stated(name, config, byte_tokenizer(config), False)
    located = (locate if weights else locate_outline)(parse_address(spec.source), spec.sha256)
    if is_pruned(located.directory):
        return None
    config = read_config(spec.source, located, spec.trust_remote_code)
    require_language_model(spec.source, config)
    tokenizer = stored_tokenizer(spec.source, located, spec)
    return _Stated(spec.source, config, tokenizer, spec.trust_remote_code)


def _outline(recipe: Recipe, side: str, found: _Stated) -> Outline:
    require_positions(recipe, side, found.name, found.config)
    capacity = recipe.draft_capacity if side == "draft" else recipe.capacity
    with naming_source(side), quiet():
        shape = check_config(found.config, capacity=capacity, trust_remote_code=found.trust_remote_code)
    rows = shape.head_rows
    tokenizer = found.tokenizer.directory
    vocab_size = real_vocab_size(tokenizer, rows)
    facts = GraphFacts(capacity, shape.layout.layers if shape.layout else 0, vocab_size, rows)
    return Outline(found.name, shape, tokenizer, facts, found.tokenizer.notes)
