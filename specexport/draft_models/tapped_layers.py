"""Which hidden states of the target feed an EAGLE-3 draft, read from layer ids that do not say what they count.

Publishers write two things under one key. vLLM and speculators count what enters a layer: id n is the stream before
layer n. SpecForge and Model Optimizer count what leaves it: id n is the stream after layer n, which enters n + 1. The
original repository writes no ids and reads what enters 2, n/2 and n - 3. SGLang tells the two apart by a first id of 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specexport.draft_models.targets import DraftTarget
from specexport.errors import CheckpointUnsupported

LAYER_IDS_KEY = "eagle_aux_hidden_state_layer_ids"
MEANING_KEY = "layer_ids_mean"
FEATURE_LAYERS = 3

Meaning = Literal["entering", "leaving"]


@dataclass(frozen=True)
class StatedLayers:
    """Layer numbers that say what they count: what enters these layers, or what leaves them."""

    meaning: Meaning
    ids: tuple[int, ...]

    @property
    def entering(self) -> tuple[int, ...]:
        """The layers that the same hidden states enter; the number of layers stands for what leaves the last."""
        return self.ids if self.meaning == "entering" else tuple(index + 1 for index in self.ids)


@dataclass(frozen=True)
class TappedFeatures:
    """The features are what enters the layers `entering`, in this order; `reason` says how that is known.

    `doubt` says what to try where the files do not settle it.
    """

    entering: tuple[int, ...]
    reason: str
    doubt: str | None = None


def default_layer_ids(layers: int) -> tuple[int, ...]:
    """Return the published choice for EAGLE-3: what enters layers 2, n/2 and n-3."""
    return (2, layers // 2, layers - 3)


def tapped_layers(
    config: Mapping[str, Any],
    name: str,
    target: DraftTarget,
    stated: StatedLayers | None,
    *,
    speculators: bool,
) -> TappedFeatures:
    """Return what `config` (config.json of the draft `name`) says, or `stated` in its place.

    `speculators`: the config is of that format. Raises `CheckpointUnsupported` for layers that `target` does not have.
    """
    if stated is not None:
        _require_layers("draft.layer_ids", stated.ids, name, target, stated.meaning)
        return TappedFeatures(stated.entering, f"the recipe: what is {stated.meaning} {_listed(stated.ids)}")
    nested = config.get("eagle_config") or {}
    if not isinstance(nested, dict):
        raise CheckpointUnsupported(f"{name}: eagle_config is {nested!r} in config.json, expected an object")
    places = (config, nested)
    ids = next((place[LAYER_IDS_KEY] for place in places if place.get(LAYER_IDS_KEY)), None)
    meaning = next((place[MEANING_KEY] for place in places if MEANING_KEY in place), None)
    if ids is None:
        return TappedFeatures(
            _published_choice(name, target), "the published choice: config.json names no layers"
        )
    if meaning not in (None, "entering", "leaving"):
        raise CheckpointUnsupported(
            f"{name}: {MEANING_KEY} is {meaning!r} in config.json, expected 'entering' or 'leaving'"
        )
    _require_layers(LAYER_IDS_KEY, ids, name, target, meaning)
    return _read(tuple(ids), meaning, target.layers, name, speculators=speculators)


def _read(
    ids: tuple[int, ...], meaning: Meaning | None, layers: int, name: str, *, speculators: bool
) -> TappedFeatures:
    """Return the rule for ids whose meaning is not `stated` by the recipe; every branch names its evidence."""
    entering = StatedLayers("entering", ids)
    leaving = StatedLayers("leaving", ids)
    shown = f"config.json's {list(ids)}"
    if meaning is not None:
        read = entering if meaning == "entering" else leaving
        return TappedFeatures(read.entering, f"{shown}, said there to be {meaning}")
    if layers in ids:
        return TappedFeatures(ids, f"{shown}: nothing leaves a layer {layers}, so they are entering")
    published = default_layer_ids(layers)
    if ids == published:
        return TappedFeatures(ids, f"{shown}, the published choice of layers, entering")
    if leaving.entering == published:
        doubt = _doubt(name, leaving, entering, "speculators counts what enters") if speculators else None
        return TappedFeatures(leaving.entering, f"{shown}, the published choice, leaving", doubt)
    if speculators:
        return TappedFeatures(ids, f"{shown}, entering as in every file of speculators")
    if ids[0] == 1:
        return TappedFeatures(leaving.entering, f"{shown}, leaving: a first id of 1 is SpecForge's")
    return TappedFeatures(
        ids,
        f"{shown}, taken to be entering",
        _doubt(name, entering, leaving, "SpecForge and Model Optimizer count what leaves"),
    )


def _doubt(name: str, read: StatedLayers, other: StatedLayers, why: str) -> str:
    return (
        f"{name}: {LAYER_IDS_KEY} {list(read.ids)} is read as layers that the features are {read.meaning}, but {why}; "
        f"where few tokens are accepted, try draft.layer_ids: {{{other.meaning}: {list(other.ids)}}}, and say "
        f"{{{read.meaning}: {list(read.ids)}}} to confirm this reading"
    )


def _published_choice(name: str, target: DraftTarget) -> tuple[int, ...]:
    ids = default_layer_ids(target.layers)
    if ids[-1] < 0 or len(set(ids)) != len(ids):
        raise CheckpointUnsupported(
            f"{name}: config.json names no {LAYER_IDS_KEY}, and the published choice for the {target.layers} layers of "
            f"{target.name} would be {list(ids)}; expected three different layers: name them in the recipe, as in "
            "draft.layer_ids: {entering: [0, 1, 2]}"
        )
    return ids


def _require_layers(key: str, ids: object, name: str, target: DraftTarget, meaning: Meaning | None) -> None:
    if (
        not isinstance(ids, (list, tuple))
        or len(ids) != FEATURE_LAYERS
        or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids)
    ):
        raise CheckpointUnsupported(f"{name}: {key} is {ids}, expected {FEATURE_LAYERS} layer numbers")
    last = target.layers - 1 if meaning == "leaving" else target.layers
    for index in ids:
        if not 0 <= index <= last:
            raise CheckpointUnsupported(
                f"{name}: {key} is {list(ids)}, expected 0..{last}: the target {target.name} has {target.layers} "
                "layers, so the draft is for another target"
            )


def _listed(ids: tuple[int, ...]) -> str:
    return f"layers {', '.join(map(str, ids[:-1]))} and {ids[-1]}"
