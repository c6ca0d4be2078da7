"""A draft tree as a picture. Needs the extra `plot` (matplotlib)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specexport.bench.rendering import require_plot
from specexport.recipe.schema import load_recipe
from specexport.recipe.trees import ComputedTree, SpelledTree
from specexport.trees import Rates, Tree, expected_tokens
from specruntime.bundle import load_manifest
from specruntime.errors import InvalidArgument

_MARKER = 22.0  # points; a label of three characters fits
_PER_LEAF, _PER_LEVEL = 0.55, 0.9  # inches


def require_drawing(path: Path) -> None:
    """Before anything else is read: raises `BackendMissing` or `InvalidArgument`."""
    require_plot(path, "--tree")


def draw_tree(tree: Tree, path: Path, *, title: str, acceptance: Rates | None = None) -> None:
    """Nodes carry their rank; under them the probability that they are accepted, where rates are known.

    Raises `InvalidArgument` for a node without a rate, `OSError` when the file cannot be written.
    """
    from matplotlib.figure import Figure

    places, leaves = place_nodes(tree)
    levels = max(tree.depths) + 1
    figure = Figure(
        figsize=(max(5.0, _PER_LEAF * leaves + 2.0), max(3.0, _PER_LEVEL * levels + 1.0)),
        layout="constrained",
    )
    axes = figure.subplots()
    for row, parent in enumerate(tree.parents, start=1):
        axes.plot(*zip(places[parent], places[row], strict=True), color="0.6", linewidth=1, zorder=1)
    labels = ["", *(str(rank) for rank in tree.ranks)]
    worths = node_probabilities(tree, acceptance) if acceptance is not None else None
    for row, ((x, depth), label) in enumerate(zip(places, labels, strict=True)):
        shade = "white" if worths is None else str(1 - 0.6 * worths[row])
        axes.plot(x, depth, "o", markersize=_MARKER, markerfacecolor=shade, markeredgecolor="0.2", zorder=2)
        axes.annotate(label, (x, depth), ha="center", va="center", fontsize=9, zorder=3)
        if worths is not None and row > 0:
            axes.annotate(
                f"{worths[row]:.2f}".lstrip("0"),
                (x, depth),
                xytext=(0, -_MARKER / 2 - 3),
                textcoords="offset points",
                ha="center",
                va="top",
                fontsize=7,
            )
    _dress(axes, tree, title, acceptance)
    figure.savefig(path, dpi=150)


def place_nodes(tree: Tree) -> tuple[list[tuple[float, int]], int]:
    """(x, depth) of each window row, leaves one apart and parents above the middle of their children; the leaves."""
    children: list[list[int]] = [[] for _ in range(len(tree.parents) + 1)]
    for row, parent in enumerate(tree.parents, start=1):
        children[parent].append(row)
    depths = (0, *tree.depths)
    x = [0.0] * len(depths)
    leaves = 0
    order = [0]
    for row in order:  # each row before its children
        order.extend(children[row])
    ranked = sorted(range(1, len(depths)), key=lambda row: tree.paths[row - 1])
    for row in ranked:  # leaves from left to right by their ranks
        if not children[row]:
            x[row] = float(leaves)
            leaves += 1
    for row in reversed(order):
        if children[row]:
            x[row] = (x[children[row][0]] + x[children[row][-1]]) / 2
    return list(zip(x, depths, strict=True)), leaves


def node_probabilities(tree: Tree, acceptance: Rates) -> list[float]:
    """Return the probability that each window row is accepted, which requires the whole path to it. Row 0 has 1."""
    expected_tokens(tree, acceptance)  # raises where a node has no rate
    worths = [1.0]
    for parent, rank, depth in zip(tree.parents, tree.ranks, tree.depths, strict=True):
        worths.append(worths[parent] * acceptance[depth - 1][rank])
    return worths


def _dress(axes: Any, tree: Tree, title: str, acceptance: Rates | None) -> None:
    """Title, levels from the top down, no frame."""
    expected = "" if acceptance is None else f", {expected_tokens(tree, acceptance):.2f} tokens expected"
    axes.set_title(f"{title}: {len(tree.parents)} nodes{expected}", fontsize=10)
    axes.set_yticks(
        range(max(tree.depths) + 1), ["committed", *(f"depth {d}" for d in range(1, max(tree.depths) + 1))]
    )
    axes.invert_yaxis()
    axes.margins(x=0.08, y=0.15)
    axes.xaxis.set_visible(False)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0)


_BUNDLED_RECIPE = "recipe.yaml"


@dataclass(frozen=True, slots=True)
class DrawnTree:
    tree: Tree
    title: str
    acceptance: Rates | None  # None where it was not measured


def drawn_tree(path: Path) -> DrawnTree:
    """Return the tree of a bundle, or of a recipe where `path` is a file.

    Raises `InvalidArgument` without a tree of a fixed shape, and what reading either raises.
    """
    if path.is_file():
        recipe = load_recipe(path)
        stated = _stated_tree(recipe.draft)
        if stated is None:
            raise _no_tree(path, recipe.draft.kind, getattr(recipe.draft, "dynamic_tree", None))
        return DrawnTree(stated.shape, recipe.name, _rates(stated))
    manifest = load_manifest(path)
    draft = manifest.draft
    tree = getattr(draft, "tree", None)
    if tree is None:
        raise _no_tree(path, draft.kind, getattr(draft, "dynamic", None))
    bundled = path / _BUNDLED_RECIPE
    stated = _stated_tree(load_recipe(bundled).draft) if bundled.is_file() else None
    return DrawnTree(Tree(tree.parents, tree.ranks), manifest.name, _rates(stated))


def _stated_tree(draft: object) -> SpelledTree | ComputedTree | None:
    return getattr(draft, "tree", None)


def _rates(stated: SpelledTree | ComputedTree | None) -> Rates | None:
    return stated.acceptance if isinstance(stated, ComputedTree) else None


def _no_tree(path: Path, kind: str, grown: object) -> InvalidArgument:
    if grown is not None:
        return InvalidArgument(f"{path}: its tree is grown every round, so it has no fixed shape to draw")
    return InvalidArgument(
        f"{path}: a draft of kind {kind} without a tree is a chain, there is nothing to draw; expected `draft.tree`"
    )
