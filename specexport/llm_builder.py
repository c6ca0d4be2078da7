"""Builds the bundle that `specruntime.LLM(model=..., speculative_config=...)` asks for, and keeps it.

Owns how those options become a recipe. Found by the runtime through the entry-point group `specruntime.llm.engine`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specexport.cache.entries import cache_directory, text_sha256
from specexport.draft_kinds import KINDS
from specexport.errors import RecipeError
from specexport.recipe.messages import explain
from specexport.recipe.schema import Recipe
from specruntime.errors import InvalidArgument
from specruntime.manifest.messages import one_of

_PRECISIONS = {
    "auto": "fp32", "float32": "fp32", "float": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16",
}  # fmt: skip
_KEYS = ("method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")


def build_for_llm(
    *,
    model: str,
    speculative_config: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    max_model_len: int | None = None,
) -> Path:
    """Return the bundle's path in the cache; built unless an intact one of the same inputs is there.

    Raises `InvalidArgument` for an option that no recipe has, `RecipeError` for a value that none may hold, and what
    a build raises.
    """
    recipe = recipe_for(model, speculative_config, dtype, max_model_len)
    place = cache_directory() / "bundles" / f"{recipe.name}-{text_sha256(recipe.model_dump_json())[:16]}"
    place.parent.mkdir(parents=True, exist_ok=True)
    from specexport.build import build

    return build(recipe, place)


def recipe_for(
    model: str,
    speculative_config: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    max_model_len: int | None = None,
) -> Recipe:
    """Return the recipe of these options; raises as `build_for_llm`."""
    if dtype is not None and dtype not in _PRECISIONS:
        raise InvalidArgument(f"dtype is {dtype!r}, {one_of(str(dtype), _PRECISIONS)}")
    document = {
        "name": re.sub(r"[^A-Za-z0-9._-]+", "-", Path(model).name).lstrip("._-") or "model",
        "target": {"source": address_of(model)},
        "precision": _PRECISIONS[dtype or "auto"],
        "draft": _draft(speculative_config),
        **({} if max_model_len is None else {"capacity": max_model_len}),
    }
    try:
        return Recipe.model_validate(document, strict=False, context={"directory": Path.cwd()})
    except ValidationError as error:
        raise RecipeError(*explain(error, Recipe)) from None


def address_of(model: str) -> str:
    """Return the address that a recipe gives for what users call a model: a path, a hub repository, or an address
    itself.

    Raises `InvalidArgument` for anything else.
    """
    if "://" in model or model.startswith(("/", "./", "../", "~")) or model.endswith(".gguf"):
        return model
    if Path(model).exists():
        return f"./{model}"
    repository, _, revision = model.partition("@")
    if repository.count("/") != 1:
        raise InvalidArgument(
            f"{model!r} is neither a bundle nor a checkpoint here, and no repository of the hub; expected a directory, "
            "a .gguf file or organisation/name@revision"
        )
    return f"hub://{repository}@{revision or 'main'}"


def _draft(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the recipe's `draft` of a `speculative_config` as vLLM takes it."""
    if config is None:
        return {"kind": "none"}
    for key in config:
        if key not in _KEYS:
            raise InvalidArgument(f"speculative_config has the key {key!r}, {one_of(str(key), _KEYS)}")
    method = config.get("method") or ("draft_model" if "model" in config else "ngram")
    if config.get("model") in ("ngram", "[ngram]"):
        method = "ngram"
    methods = {name: kind for section in KINDS for name, kind in section.vllm_methods.items()}
    if method not in methods:
        raise InvalidArgument(f"speculative_config has the method {method!r}, {one_of(str(method), methods)}")
    draft: dict[str, Any] = {"kind": methods[method]}
    if (k := config.get("num_speculative_tokens")) is not None:
        draft["k"] = k
    return draft | (_lookup(config) if method == "ngram" else _source(config, method))


def _lookup(config: Mapping[str, Any]) -> dict[str, Any]:
    if config.get("model") not in (None, "ngram", "[ngram]"):
        raise InvalidArgument(
            f"speculative_config has the model {config['model']!r} and the method 'ngram', which takes none: "
            "leave one of them out"
        )
    names = {"prompt_lookup_max": "max_n", "prompt_lookup_min": "min_n"}
    return {name: config[key] for key, name in names.items() if config.get(key) is not None}


def _source(config: Mapping[str, Any], method: str) -> dict[str, Any]:
    for key in ("prompt_lookup_max", "prompt_lookup_min"):
        if key in config:
            raise InvalidArgument(
                f"speculative_config has {key}, which is for the method 'ngram' and not {method!r}"
            )
    if not isinstance(config.get("model"), str):
        raise InvalidArgument(
            f"speculative_config has the method {method!r} and the model {config.get('model')!r}, expected the draft's "
            "checkpoint as 'model'"
        )
    return {"source": address_of(config["model"])}
