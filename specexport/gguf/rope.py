"""Rotary positions as a GGUF file states them, as the `rope_parameters` of a transformers config.

The meaning of every key is llama.cpp's (src/llama-model.cpp, llama-context.cpp, ggml's rope_yarn).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from specexport.gguf.keys import Keys

ROPE_FREQS, ROPE_LONG, ROPE_SHORT = (
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
)
_SCALING = "rope.scaling."


def rope_parameters(
    keys: Keys, tables: Mapping[str, Sequence[float]], rotary: int, context: int
) -> dict[str, Any]:
    """`tables`: the factor tensors that the file holds; `rotary`: rotated numbers of a head; `context`: positions.

    Raises `CheckpointUnsupported` for what cannot be carried out exactly.
    """
    theta = keys.take("rope.freq_base", 10000.0)
    kind = keys.take(f"{_SCALING}type", None)
    factor = keys.take(f"{_SCALING}factor", None) or keys.take("rope.scale_linear", None) or 1.0
    original = keys.take(f"{_SCALING}original_context_length", context)
    attention = keys.take(f"{_SCALING}attn_factor", None)
    for name, values in tables.items():
        if len(values) != rotary // 2:
            raise keys.refused(f"{name} has {len(values)} factors, expected {rotary // 2}")
    if kind in (None, "longrope") and (ROPE_LONG in tables or ROPE_SHORT in tables or kind == "longrope"):
        keys.require(f"{_SCALING}factor", factor, 1.0)
        if ROPE_FREQS in tables:
            raise keys.refused(f"{ROPE_FREQS} together with the tables of longrope scaling")
        return {"rope_theta": theta} | _longrope(keys, tables, context, original, attention)
    if ROPE_LONG in tables or ROPE_SHORT in tables:
        raise keys.refused(f"{ROPE_LONG} and {ROPE_SHORT} with {_SCALING}type {kind}")
    keys.require(f"{_SCALING}attn_factor", attention, None, 1.0)
    if ROPE_FREQS in tables and any(value != 1 for value in tables[ROPE_FREQS]):
        keys.require(f"{_SCALING}type", kind, None, "none", "linear")
        keys.require(f"{_SCALING}factor", 1.0 if kind == "none" else factor, 1.0)
        return {"rope_theta": theta} | _divided(tables[ROPE_FREQS], context)
    if kind == "yarn":
        return {"rope_theta": theta} | _yarn(keys, factor, original)
    keys.require(f"{_SCALING}type", kind, None, "none", "linear")
    if kind == "none" or factor == 1.0:
        return {"rope_theta": theta, "rope_type": "default"}
    return {"rope_theta": theta, "rope_type": "linear", "factor": factor}


def _divided(factors: Sequence[float], context: int) -> dict[str, Any]:
    """Every frequency divided by its own factor, as llama 3's scaling is stored. Longrope with one table for all
    lengths is exactly that, whatever made the factors."""
    return {
        "rope_type": "longrope",
        "factor": 1.0,
        "attention_factor": 1.0,
        "short_factor": list(factors),
        "long_factor": list(factors),
        "original_max_position_embeddings": context,
    }


def _longrope(
    keys: Keys, tables: Mapping[str, Sequence[float]], context: int, original: int, attention: float | None
) -> dict[str, Any]:
    missing = [name for name in (ROPE_LONG, ROPE_SHORT) if name not in tables]
    if missing:
        raise keys.refused(f"lacks the tensor {missing[0]}, which longrope scaling needs")
    if attention is None:
        raise keys.refused(
            f"lacks the key {keys.architecture}.{_SCALING}attn_factor, which longrope scaling needs"
        )
    return {
        "rope_type": "longrope",
        "factor": context / original,
        "attention_factor": attention,
        "short_factor": list(tables[ROPE_SHORT]),
        "long_factor": list(tables[ROPE_LONG]),
        "original_max_position_embeddings": original,
    }


def _yarn(keys: Keys, factor: float, original: int) -> dict[str, Any]:
    keys.require(f"{_SCALING}yarn_ext_factor", keys.take(f"{_SCALING}yarn_ext_factor", 1.0), 1.0)
    keys.require(f"{_SCALING}yarn_log_multiplier", keys.take(f"{_SCALING}yarn_log_multiplier", 0.0), 0.0)
    implied = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    attention = keys.take(f"{_SCALING}yarn_attn_factor", implied)
    # Conversion writes a checkpoint's `attention_factor` (the whole factor) or `attn_factor` (one to multiply by) here,
    # and llama.cpp takes the implied factor whatever stands here: only that one has a single meaning.
    if not math.isclose(attention, implied, rel_tol=1e-6):
        raise keys.refused(
            f"{keys.architecture}.{_SCALING}yarn_attn_factor is {attention}, expected {implied:.7g}, which follows "
            "from the factor and which llama.cpp uses in its place"
        )
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        "beta_fast": keys.take(f"{_SCALING}yarn_beta_fast", 32.0),
        "beta_slow": keys.take(f"{_SCALING}yarn_beta_slow", 1.0),
    }
