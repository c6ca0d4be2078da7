"""Packed weights serve the processor and the library that they were packed by and for, and no other."""

from pathlib import Path

import pytest

from specruntime.engines import prepacked
from specruntime.engines.prepacked import processor_features, unfit
from specruntime.manifest.schema import PrepackedWeights

HOST = ("avx", "avx2", "fma")
PACKED = PrepackedWeights(
    file="target/packed.onnx",
    version="1.32.0",
    architecture="x86_64",
    features=HOST,
    weights="target/graph.weights",
    bytes=4096,
    plain_sha256="0" * 64,
)


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepacked, "architecture", lambda: "x86_64")
    monkeypatch.setattr(prepacked, "processor_features", lambda: HOST)


def test_the_host_that_packed_uses_them() -> None:
    assert unfit(PACKED, "1.32.0") is None


@pytest.mark.parametrize(
    ("change", "library", "said"),
    [
        ({}, None, "onnxruntime is not installed"),
        ({}, "1.32.1", "onnxruntime 1.32.1 is installed, they were packed by 1.32.0"),
        ({"architecture": "aarch64"}, "1.32.0", "this processor is x86_64, they were packed for aarch64"),
        ({"features": ("avx", "avx2", "avx512f", "fma")}, "1.32.0", "this one lacks avx512f"),
        ({"features": ("avx2",)}, "1.32.0", "this one has avx, fma"),
        ({"features": ("amx_int8", "avx", "avx2")}, "1.32.0", "this one lacks amx_int8 and has fma"),
    ],
)
def test_another_host_is_told_why_it_packs(change: dict[str, object], library: str | None, said: str) -> None:
    reason = unfit(PACKED.model_copy(update=change), library)
    assert reason is not None and reason.endswith(said)


def test_a_system_that_hides_its_features_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepacked, "processor_features", lambda: None)
    assert unfit(PACKED, "1.32.0") == "this system does not report the processor's features"


@pytest.mark.parametrize(
    ("cpuinfo", "found"),
    [
        (
            "processor\t: 0\nflags\t\t: fpu avx2 ssse3 avx amx_int8\n\nprocessor : 1\nflags : fpu\n",
            "amx_int8 avx avx2",
        ),
        ("processor\t: 0\nFeatures\t: fp asimd i8mm asimddp\n", "asimd asimddp i8mm"),
        ("processor\t: 0\nflags\t: fpu sse2\n", ""),
        ("processor\t: 0\nmodel name\t: flags avx\n", None),
    ],
)
def test_features_are_those_that_decide_how_weights_are_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: str, found: str | None
) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(prepacked, "_CPUINFO", tmp_path / "cpuinfo")
    assert processor_features() == (None if found is None else tuple(found.split()))
    monkeypatch.setattr(prepacked, "_CPUINFO", tmp_path / "missing")
    assert processor_features() is None
