"""TensorRT bundles through the public command: what comes out is what a GPU host loads; a refusal is one line."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from specexport.cli import main
from specruntime.bundle import load_manifest
from specruntime.drafts import ModelDraft
from specruntime.engines.cuda import open_driver
from specruntime.errors import BackendIncompatible, BackendMissing
from specruntime.manifest.schema import GraphSpec
from specruntime.manifest.tensorrt import TensorRTEngine
from tests.conftest import RECIPES

pytest.importorskip("tensorrt_rtx")

CAPACITY, LAYERS, K = 128, 2, 4


def tiny_recipe(**changes: Any) -> dict[str, Any]:
    """recipes/tiny-random.yaml in fp16 for tensorrt_rtx, its draft fused into one launch."""
    recipe: dict[str, Any] = yaml.safe_load((RECIPES / "tiny-random.yaml").read_text())
    recipe["target"]["source"]["random"]["sizes"] |= {
        "hidden_size": 128
    }  # heads of 32: the fused kernel's least
    recipe["draft"] |= {"fused": True, "capacity": CAPACITY}
    recipe |= {"precision": "fp16", "capacity": CAPACITY, "backend": {"kind": "tensorrt_rtx"}}
    recipe["parity"]["tolerance"] = 0.5
    return recipe | changes


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def refusal(result: Result) -> str:
    """The one line of a command that was refused, without the stages before it."""
    assert result.exit_code == 1, result.output
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: ") and "Traceback" not in result.output
    return last


@dataclass(frozen=True)
class Place:
    """One cache for all builds of this file, so that stages are shared."""

    root: Path

    def write(self, name: str, recipe: dict[str, Any]) -> Path:
        path = self.root / f"{name}.yaml"
        path.write_text(yaml.safe_dump(recipe))
        return path

    def build(self, name: str, **changes: Any) -> Result:
        return run("build", self.write(name, tiny_recipe(**changes)), "-o", self.root / f"{name}.bundle")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("tensorrt")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SPECEXPORT_CACHE", str(root / "cache"))
        yield Place(root)


@pytest.fixture(scope="module")
def bundle(place: Place) -> Path:
    result = place.build("tiny")
    assert result.exit_code == 0, result.output
    return place.root / "tiny.bundle"


@pytest.fixture
def no_driver() -> None:
    try:
        open_driver()
    except (BackendMissing, BackendIncompatible):
        return
    pytest.skip("this machine can run engines")


def engines(bundle: Path) -> dict[str, dict[str, Any]]:
    """The compiler's report of each graph, from build.json; the same as the engine.json next to the engine."""
    record = json.loads((bundle / "build.json").read_text())
    for name, graph in record["graphs"].items():
        assert json.loads((bundle / name / "engine.json").read_text()) == graph["engine"]
    return {name: graph["engine"]["report"] for name, graph in record["graphs"].items()}


def require_bound(report: dict[str, Any], spec: GraphSpec) -> None:
    """Engine and manifest agree on names, dtypes, profiles and on one aliased pair per cache."""
    for side, tensors in (("inputs", spec.inputs), ("outputs", spec.outputs)):
        assert [binding["name"] for binding in report[side]] == [tensor.name for tensor in tensors]
    pairs = [[pair.input, pair.output] for pair in spec.aliases]
    assert report["aliases"] == pairs and len(pairs) == 2 * spec.layers
    assert len(report["kv_cache_updates"]) == len(pairs)
    (profile,) = report["profiles"]
    widths = [p.width for p in spec.profiles]
    assert profile["input_ids"]["minimum"] == [1, min(widths)]
    assert profile["input_ids"]["maximum"] == [1, max(widths)]
    assert isinstance(spec.engine, TensorRTEngine)
    assert spec.engine.optimization_profiles == {p.name: 0 for p in spec.profiles}
    assert {"7.5", "8.9", "12.0"} <= set(spec.engine.compute_capabilities)


def test_the_target_is_bound_aliased_and_fused(bundle: Path) -> None:
    target, report = load_manifest(bundle).target, engines(bundle)["target"]
    require_bound(report, target)
    assert len(report["fused_attention"]) == LAYERS and report["unfused_attention"] == []
    assert [p.name for p in target.profiles] == ["step", "verify_5", "prefill_16", "prefill_32"]
    assert not (bundle / "target" / "graph.onnx").exists(), "the engine holds the weights"


def test_the_fused_draft_is_one_engine_of_k_ids(bundle: Path) -> None:
    draft, report = load_manifest(bundle).draft, engines(bundle)["draft"]
    assert isinstance(draft, ModelDraft) and draft.fused and draft.graph.drafted == K
    require_bound(report, draft.graph)
    assert len(report["unfused_attention"]) == LAYERS * K, (
        "attention over cache and new rows is primitive operators"
    )


def test_the_mask_is_an_input_so_one_engine_serves_chains_and_trees(bundle: Path) -> None:
    target = load_manifest(bundle).target
    mask = next(tensor for tensor in target.inputs if tensor.name == "window_mask")
    assert (mask.dtype, mask.shape) == ("bool", (1, "W", "W"))


def test_an_unchanged_recipe_is_not_built_again(place: Place, bundle: Path) -> None:
    before = (bundle / "manifest.json").stat().st_mtime_ns
    result = place.build("tiny")
    assert result.exit_code == 0 and "nothing changed" in result.stderr
    assert (bundle / "manifest.json").stat().st_mtime_ns == before


def test_stages_come_from_the_cache_when_the_bundle_is_gone(place: Place, bundle: Path) -> None:
    again = place.root / "again.bundle"
    result = run("build", place.root / "tiny.yaml", "-o", again)
    assert result.exit_code == 0 and "into PyTorch" not in result.stderr
    assert engines(again) == engines(bundle)  # seconds and memory of the first compilation included


def test_bf16_builds_and_its_parity_says_how_it_was_computed(place: Place) -> None:
    changes = {"draft": {"kind": "ngram", "k": 4}, "precision": "bf16", "parity": {"tolerance": 2.0}}
    result = place.build("bf16", **changes)
    assert result.exit_code == 0, result.output
    root = place.root / "bf16.bundle"
    parity = json.loads((root / "build.json").read_text())["graphs"]["target"]["parity"]
    assert parity["widened"] and 0 < parity["logit_difference"] <= 2.0
    caches = [tensor for tensor in load_manifest(root).target.inputs if tensor.name.startswith("past_")]
    assert {tensor.dtype for tensor in caches} == {"bfloat16"}
    assert len(engines(root)["target"]["fused_attention"]) == LAYERS
    assert "computed in float32" in run("inspect", root).output


def test_weights_in_fp8_are_the_targets_and_are_judged(place: Place, bundle: Path) -> None:
    pytest.importorskip("modelopt")
    text = "numbers 1 2 3 4 and words of no meaning. " * 4
    weights = {"format": "fp8", "calibration": {"text": text, "tokens": 100}}
    result = place.build("fp8", weights=weights, fidelity={"text": text, "tokens": 100})
    assert result.exit_code == 0, result.output
    assert "14 linear layers in fp8, the rest in fp16" in result.stderr
    root = place.root / "fp8.bundle"
    manifest, record = load_manifest(root), json.loads((root / "build.json").read_text())["graphs"]
    assert manifest.precision == "fp8" and isinstance(manifest.draft, ModelDraft)
    target, draft = manifest.target.engine, manifest.draft.graph.engine
    assert isinstance(target, TensorRTEngine) and isinstance(draft, TensorRTEngine)
    assert target.compute_capabilities == ("8.9", "12.0", "12.1") and "7.5" in draft.compute_capabilities
    assert record["draft"]["fidelity"] is None and record["target"]["fidelity"]["kl"] > 1e-6
    assert "calibrated on 100 tokens" in record["target"]["passes"][-1]["reasons"][0]
    assert engines(root)["target"]["weights_bytes"] < engines(bundle)["target"]["weights_bytes"]
    limits = {"text": text, "tokens": 100, "kl": 1e-9}
    refused = refusal(place.build("worse", weights=weights, fidelity=limits))
    assert (
        refused.startswith(f"error: {place.root / 'worse.yaml'}: fidelity.kl: fp8 weights reach")
        and not (place.root / "worse.bundle").exists()
    )


def test_step_times_say_why_there_are_none(no_driver: None, bundle: Path) -> None:
    for graph in json.loads((bundle / "build.json").read_text())["graphs"].values():
        assert graph["step_ms"] is None and "no CUDA driver" in graph["step_ms_reason"]


def test_inspect_shows_the_engine(bundle: Path) -> None:
    shown = run("inspect", bundle).output
    assert "2 attentions fused" in shown and "4 KV caches updated in place" in shown
    assert "kB of weights" in shown and "read a whole KV cache" in shown
    document = json.loads(run("inspect", bundle, "--json").output)
    assert document["graphs"]["target"]["engine_report"]["fused_attention"] == LAYERS


@pytest.mark.parametrize("command", ["generate", "check", "bench"])
def test_a_host_without_a_driver_says_so(no_driver: None, bundle: Path, tmp_path: Path, command: str) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "a", "prompt": "abc", "category": "x"}\n')
    options = {
        "generate": ["--prompt", "abc"],
        "check": [],
        "bench": ["--prompts", str(prompts), "--max-new-tokens", "4"],
    }
    assert "install the NVIDIA driver" in refusal(run(command, bundle, *options[command]))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"precision": "fp32"}, "precision: found fp32.*backend.decomposable_attention: true"),
        ({"backend": {"kind": "tensorrt_rtx", "timing_cache": True}}, "timing_cache.*no-ops in TensorRT-RTX"),
        (
            {"backend": {"kind": "tensorrt_rtx", "compute_capabilities": ["SM90"]}},
            "found SM90, expected some of SM75",
        ),
        (
            {"backend": {"kind": "tensorrt_rtx", "workspace_mib": 1}},
            "backend.workspace_mib: found 1: no kernel fits",
        ),
    ],
    ids=["fp32", "option", "capability", "workspace"],
)
def test_what_cannot_be_built_is_refused_in_one_line(
    place: Place, bundle: Path, changes: dict[str, Any], line: str
) -> None:
    result = place.build("refused", **changes)
    assert pytest.RaisesExc(Exception, match=line).matches(Exception(refusal(result)))
    assert not (place.root / "refused.bundle").exists()


@pytest.mark.parametrize("kind", ["tensorrt", "tensorrt_rtx"])
def test_a_missing_library_is_said_before_any_work(
    place: Place, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setitem(sys.modules, kind, None)
    result = place.build("missing", backend={"kind": kind})
    assert f"run `pip install {kind.replace('_', '-')} cuda-bindings`" in refusal(result)
    assert "fetching" not in result.stderr


@pytest.mark.slow
def test_smollm2_builds_within_its_budget(tmp_path: Path) -> None:
    """In a process of its own, so that the peak is that of the build."""
    specexport = str(Path(sys.executable).with_name("specexport"))
    output = tmp_path / "smollm2.bundle"
    command = [specexport, "build", str(RECIPES / "smollm2-135m-tensorrt-rtx.yaml"), "-o", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    target, report = load_manifest(output).target, engines(output)["target"]
    require_bound(report, target)
    assert len(report["fused_attention"]) == target.layers == 30 and report["unfused_attention"] == []
    assert len(report["cache_copies"]) <= 2 * target.layers
    assert report["weights_bytes"] < report["engine_bytes"] <= 1.15 * report["weights_bytes"]
    assert json.loads((output / "target" / "engine.json").read_text())["peak_memory_bytes"] < 2.5e9
    again = run(*command[1:])
    assert again.exit_code == 0 and "nothing changed" in again.stderr
