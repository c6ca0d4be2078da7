"""The latency table of this device: what is installed is measured, what is missing is named; JSON and a plot."""

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import torch

from specruntime.errors import BackendMissing
from tests.gpu.conftest import build_variant, load_on_device
from tests.gpu.latency import measure_bundle, measure_pytorch, measure_without_graphs

WIDTHS = [1, 4, 12, 128]
PACKAGES = ("torch", "onnxruntime-gpu", "tensorrt", "tensorrt-rtx")

Table = dict[str, dict[str, float]]


def test_latency_table(
    capability: tuple[int, int], request: pytest.FixtureRequest, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    table: Table = {}
    missing: dict[str, str] = {}
    _measure_tensorrt(table, missing, request)
    _measure_onnxruntime(table, missing, tmp_path)
    model = load_on_device()
    table["pytorch eager"] = measure_pytorch(model, WIDTHS, 1024, compiled=False)
    table["pytorch compiled"] = measure_pytorch(model, WIDTHS, 1024, compiled=True)
    out = Path(pytestconfig.getoption("--gpu-out"))
    out.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name()
    record = {
        "device": device,
        "compute_capability": f"{capability[0]}.{capability[1]}",
        "versions": {name: _version(name) for name in PACKAGES},
        "milliseconds_by_width": table,
        "missing": missing,
    }
    (out / "gpu.json").write_text(json.dumps(record, indent=1))
    _plot(table, device, out / "gpu.png")


def _measure_tensorrt(table: Table, missing: dict[str, str], request: pytest.FixtureRequest) -> None:
    try:
        bundle: Path = request.getfixturevalue("bundle")
    except pytest.skip.Exception as reason:
        missing["tensorrt"] = str(reason)
        return
    table["tensorrt, graphs replayed"] = measure_bundle(bundle)
    table["tensorrt, enqueued"] = measure_without_graphs(bundle)


def _measure_onnxruntime(table: Table, missing: dict[str, str], directory: Path) -> None:
    try:
        bundle = build_variant(directory, {"kind": "onnxruntime", "provider": "cuda"})
        table["onnxruntime cuda"] = measure_bundle(bundle)
    except BackendMissing as error:
        missing["onnxruntime cuda"] = str(error)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _plot(table: Table, device: str, path: Path) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure, axes = pyplot.subplots()
    for name, times in table.items():
        widths = sorted(int(width) for width in times)
        axes.plot(widths, [times[str(width)] for width in widths], marker="o", label=name)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="window width",
        ylabel="milliseconds",
        title=f"SmolLM2-135M fp16, {device}",
    )
    axes.legend()
    figure.savefig(path, dpi=120)
