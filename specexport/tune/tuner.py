"""The whole of `specexport tune`: each bundle probed, predicted and tried on the same prompts; the best one picked."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexport.bench.machine import describe_machine
from specexport.bench.prompts import BenchPrompt, BundleText, encode_prompts
from specexport.bundle.record import measure_step_times
from specexport.errors import Interrupted
from specexport.trees import TimedTree
from specexport.tune.prediction import Prediction, bounded, predict, predict_tree, verify_times
from specexport.tune.probing import Advance, Probe, probe
from specexport.tune.trials import ADAPTIVE, Trial, try_sizes
from specruntime.bundle import LoadedBundle, open_bundle
from specruntime.drafts import DraftSpec
from specruntime.engines import EngineOptions
from specruntime.engines.cores import usable_cores
from specruntime.errors import InvalidArgument
from specruntime.manifest.schema import Manifest, stated_threads
from specruntime.sampling.params import SamplingParams

if TYPE_CHECKING:
    from specexport.tune.layer_search import LayerChoice

PAYS = 1.02  # a measured speed-up below this does not justify speculation


@dataclass(frozen=True)
class TunePlan:
    """What is tuned. `params.max_tokens` is set from `max_new_tokens`; without a seed one is drawn for all trials."""

    bundles: tuple[Path, ...]
    prompts: tuple[BenchPrompt, ...]
    max_new_tokens: int = 128
    tried: int = 2  # sizes of each bundle that are measured, the best predicted first
    minutes: float = 5.0  # most that the search for a layer_skip draft's layers takes
    params: SamplingParams = field(default_factory=SamplingParams)
    threads: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", self.params.seeded())


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one bundle."""

    path: Path
    name: str
    kind: str
    chain: bool
    acceptance: list[list[float]]  # [depth][rank]
    verify_ms: dict[int, float]  # by width
    draft_ms: dict[int, float]  # by drafted tokens
    predictions: tuple[Prediction, ...]  # plain first
    tree: TimedTree | None  # the best shape for these rates, for kinds that draft trees
    trials: tuple[Trial, ...] = ()  # plain first; none where it was interrupted before
    layers: "LayerChoice | None" = None  # the best found for a layer_skip draft

    @property
    def best(self) -> Trial:
        """The fastest that was measured, plain decoding included."""
        return max(self.trials, key=lambda trial: trial.speedup)

    @property
    def best_fixed(self) -> Trial:
        """The fastest of a fixed size."""
        return max((t for t in self.trials if t.size != ADAPTIVE), key=lambda trial: trial.speedup)

    def predicted(self, size: int) -> Prediction | None:
        return next((found for found in self.predictions if found.size == size), None)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        tree = None
        if self.tree is not None:
            shape = self.tree.tree
            tree = {
                "parents": list(shape.parents) if shape else None,
                "ranks": list(shape.ranks) if shape else None,
                "tokens": self.tree.tokens,
                "tokens_per_second": self.tree.tokens_per_second,
            }
        return {
            "bundle": str(self.path),
            "name": self.name,
            "kind": self.kind,
            "acceptance": self.acceptance,
            "verify_ms": {str(width): ms for width, ms in self.verify_ms.items()},
            "draft_ms": {str(size): ms for size, ms in self.draft_ms.items()},
            "predicted": [found.as_dict() for found in self.predictions],
            "tree": tree,
            "layers": None if self.layers is None else self.layers.as_dict(),
            "measured": [trial.as_dict() for trial in self.trials],
            "best": self.best.as_dict() if self.trials else None,
        }


@dataclass(frozen=True, slots=True)
class TuneReport:
    machine: dict[str, Any]
    findings: tuple[Finding, ...]
    # Of an interrupted tune: the bundles that were measured in part or not at all.
    unfinished: tuple[Path, ...] = ()

    @property
    def measured(self) -> tuple[Finding, ...]:
        """The bundles that were measured, not only predicted."""
        return tuple(finding for finding in self.findings if finding.trials)

    @property
    def best(self) -> Finding:
        """The bundle with the highest measured speed-up."""
        return max(self.measured, key=lambda finding: finding.best.speedup)

    @property
    def pays(self) -> bool:
        """Whether speculation is worth it at all here."""
        return self.best.best.speedup >= PAYS

    @property
    def promised_layers(self) -> "LayerChoice | None":
        """What the search of the best bundle found, where it promises to pay and more than all that was measured."""
        layers, measured = self.best.layers, self.best.best.speedup
        return layers if layers is not None and layers.speedup >= max(PAYS, measured) else None

    @property
    def promised_tree(self) -> TimedTree | None:
        """The computed tree, where the best bundle pays and the tree promises more than the bundle's own shape."""
        best = self.best
        if not self.pays or best.chain or best.best.size == ADAPTIVE:
            return None
        own = best.predicted(best.best_fixed.size)
        if best.tree is None or best.tree.tree is None:
            return None
        return None if own and own.tokens_per_second >= best.tree.tokens_per_second else best.tree

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        unfinished = {"unfinished": [str(path) for path in self.unfinished]} if self.unfinished else {}
        verdict: dict[str, Any] = {"best": None, "pays": None}
        if self.measured:
            best = {"name": self.best.name, "kind": self.best.kind, **self.best.best.as_dict()}
            verdict = {"best": best, "pays": self.pays}
        return {
            "partial": bool(self.unfinished),
            **unfinished,
            "machine": self.machine,
            "bundles": [finding.as_dict() for finding in self.findings],
            **verdict,
        }


def tune(plan: TunePlan, advance: Advance = lambda step: None) -> TuneReport:
    """Probe, predict and try each bundle on the same prompts, and return the report.

    Raises what opening and decoding raise, `InvalidArgument` for a bundle that never drafts; `Interrupted` with the
    report of what was found where Ctrl-C came after the first probe.
    """
    threads = plan.threads
    for path in plan.bundles:  # before the first is measured
        text = BundleText.of(path)
        _require_drafts(path, text.manifest)
        encode_prompts(text, plan.prompts, plan.max_new_tokens)
    findings: list[Finding] = []
    unfinished: tuple[Path, ...] = ()
    try:
        for number, path in enumerate(plan.bundles):
            unfinished = plan.bundles[number:]
            with open_bundle(path, options=EngineOptions(threads=threads)) as bundle:
                threads = threads or stated_threads(bundle.manifest.target)
                findings.append(_tune_bundle(path, bundle, plan, advance))
        unfinished = ()
    except KeyboardInterrupt as stop:
        if isinstance(stop, Interrupted):
            findings.append(stop.found)
        if not findings:
            raise
    report = TuneReport(describe_machine(threads or usable_cores()), tuple(findings), unfinished)
    if unfinished:
        raise Interrupted(report)
    return report


def _require_drafts(path: Path, manifest: Manifest) -> None:
    if not manifest.draft.nodes:
        raise InvalidArgument(
            f"{path} drafts nothing (kind none), expected a bundle with a draft: plain decoding is measured "
            "with every one"
        )


def _tune_bundle(path: Path, bundle: LoadedBundle, plan: TunePlan, advance: Advance) -> Finding:
    """Raise `Interrupted` with the finding as far as it got, once it is predicted."""
    draft, target = bundle.manifest.draft, bundle.manifest.target
    prompts = encode_prompts(bundle, plan.prompts, plan.max_new_tokens)
    params = replace(plan.params, max_tokens=plan.max_new_tokens)
    widths = sorted({p.width for p in target.profiles if p.rows == p.width and p.computes("top_ids")} | {1})
    chain = not draft.grows_trees
    found = probe(bundle, prompts, params, _sizes(draft, widths, chain), advance)
    if not any(one.size for one in found.rounds):
        raise InvalidArgument(
            f"{path}: the answers to these prompts are too short to tell anything, no round of them drafted as many "
            "tokens as it may; raise --max-new-tokens, or give prompts with longer answers"
        )
    advance(f"{bundle.manifest.name}: timing the widths")
    options = EngineOptions(threads=plan.threads)
    stepped = {int(w): ms for w, ms in measure_step_times(target, path, options=options).items()}
    verify_ms = verify_times(found, stepped, widths)
    predictions = predict(found, verify_ms, chain=chain)
    drafting = sorted(predictions[1:], key=lambda one: one.speedup, reverse=True)
    tried = [one.size for one in drafting[: plan.tried]]
    if bundle.manifest.adaptive is not None:
        tried.append(ADAPTIVE)
    finding = Finding(
        path=path,
        name=bundle.manifest.name,
        kind=draft.kind,
        chain=chain,
        acceptance=bounded(found.acceptance()),
        verify_ms=verify_ms,
        draft_ms=found.draft_ms(),
        predictions=tuple(predictions),
        tree=None if chain else predict_tree(found, verify_ms, draft.k),
    )
    try:
        finding = replace(finding, trials=tuple(try_sizes(bundle, prompts, params, tried, advance)))
        if draft.kind == "layer_skip":
            finding = replace(finding, layers=_search(path, found, verify_ms, plan, advance))
    except Interrupted as stop:
        raise Interrupted(replace(finding, trials=tuple(stop.found))) from None
    except KeyboardInterrupt:
        raise Interrupted(finding) from None
    return finding


def _search(
    path: Path, found: Probe, verify_ms: dict[int, float], plan: TunePlan, advance: Advance
) -> "LayerChoice":
    """Return the layers of the bundle's own checkpoint that draft best for the answers it gave."""
    advance("loading the checkpoint in PyTorch")
    from specexport.pytorch_reference import PytorchReference
    from specexport.tune.layer_search import search_layers

    model = PytorchReference.of_bundle(path, plan.threads).model
    narrowest = min(width for width in verify_ms if width > 1)
    return search_layers(
        model,
        found.answers,
        minutes=plan.minutes,
        verify_ratio=verify_ms[narrowest] / verify_ms[1],
        advance=advance,
    )


def _sizes(draft: DraftSpec, widths: Sequence[int], chain: bool) -> list[int]:
    """Numbers of drafted tokens that the bundle can be asked for: every length, or what fills each window."""
    if chain:
        return list(range(1, draft.k + 1))
    return sorted({min(width - 1, draft.nodes) for width in widths if width > 1})


__all__ = ["ADAPTIVE", "PAYS", "Finding", "Probe", "TunePlan", "TuneReport", "tune"]
