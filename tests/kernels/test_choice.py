"""Which graph a bundle opens: over the operators where they run, else the plain one with one line that says why."""

import json
import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from specruntime import InvalidArgument, SamplingParams, complete, open_bundle
from specruntime.bundle import LoadedBundle
from specruntime.engines import EngineOptions
from specruntime.engines.kernels import VARIABLE, asked_kernels
from specruntime.errors import BackendIncompatible, BackendMissing
from tests.kernels.window_bundle import write_window
from tests.made_once import made_once

IDS = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture(scope="session")
def window_bundle(run_directory: Path, tiny_bundle: Path) -> Path:
    def build(root: Path) -> None:
        write_window(tiny_bundle, root)

    return made_once(run_directory / "tiny-window.bundle", build)


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def package(**changes: object) -> SimpleNamespace:
    """What stands in for the installed distribution."""
    there = {
        "OPERATORS": 1,
        "LAYOUT": 1,
        "version": lambda: "0.1.0",
        "path_name": lambda name="": name or "avx2",
        "paths": lambda: {"avx2": None, "amx": "this processor has no amx_int8"},
        "library_path": lambda: Path("/nowhere/libspecruntime_kernels.so"),
    }
    return SimpleNamespace(**there | changes)


def fails(error: Exception) -> Callable[..., object]:
    def fail(*_: object) -> object:
        raise error

    return fail


UNFIT = {
    "not installed": (None, "is not installed", BackendMissing),
    "does not load": (
        package(version=fails(OSError("wrong ELF class: ELFCLASS32"))),
        "does not load: wrong ELF class",
        BackendIncompatible,
    ),
    "no file": (
        package(version=fails(FileNotFoundError("libspecruntime_kernels.so is missing"))),
        "is missing",
        BackendIncompatible,
    ),
    "operators": (package(OPERATORS=2), "has operators 2, the bundle was built for 1", BackendIncompatible),
    "layout": (package(LAYOUT=3), "has layout 3, the bundle was built for 1", BackendIncompatible),
    "processor": (
        package(path_name=fails(ValueError("this processor has no avx2"))),
        "this processor has no avx2",
        BackendIncompatible,
    ),
    "library gone": (
        package(),
        "does not take the operators of specruntime-kernels 0.1.0",
        BackendIncompatible,
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_a_host_without_them_opens_the_plain_graph_and_says_why(
    window_bundle: Path, case: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    there, words, _ = UNFIT[case]
    monkeypatch.setitem(sys.modules, "specruntime_kernels", there)
    with caplog.at_level(logging.INFO, "specruntime.engines"), open_bundle(window_bundle) as bundle:
        assert bundle.kernels is None
        assert opened_file(bundle) == bundle.manifest.target.file
        assert len(complete(bundle.new_session(), IDS, SamplingParams(max_tokens=4)).token_ids) == 4
    (line,) = [record for record in caplog.records if "target/window.onnx" in record.getMessage()]
    assert line.levelno == logging.WARNING
    assert words in line.getMessage() and "\n" not in line.getMessage()


@pytest.mark.parametrize("case", UNFIT)
def test_a_path_that_was_asked_for_by_name_and_lacks_is_an_error(
    window_bundle: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, words, error = UNFIT[case]
    monkeypatch.setitem(sys.modules, "specruntime_kernels", there)
    with pytest.raises(error, match="'avx2' cannot run") as caught:
        open_bundle(window_bundle, options=EngineOptions(kernels="avx2"))
    assert words in str(caught.value)
    monkeypatch.setenv(VARIABLE, "avx2")
    with pytest.raises(error):
        open_bundle(window_bundle)


def test_an_unknown_path_is_named_with_those_there_are(
    window_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        sys.modules, "specruntime_kernels", package(path_name=fails(ValueError("no path sse")))
    )
    with pytest.raises(InvalidArgument, match="'sse' is unknown, expected off, auto, avx2, amx"):
        open_bundle(window_bundle, options=EngineOptions(kernels="sse"))


def test_off_is_obeyed_without_looking(
    window_bundle: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "specruntime_kernels", package(version=fails(AssertionError("looked"))))
    monkeypatch.setenv(VARIABLE, "off")
    with caplog.at_level(logging.INFO, "specruntime.engines"), open_bundle(window_bundle) as bundle:
        assert bundle.kernels is None
    (line,) = [record for record in caplog.records if "target/window.onnx" in record.getMessage()]
    assert line.levelno == logging.INFO and "turned off" in line.getMessage()


def test_the_option_goes_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked_kernels(None) == "auto"
    monkeypatch.setenv(VARIABLE, " off ")
    assert asked_kernels(None) == "off"
    assert asked_kernels("avx2") == "avx2"


def test_a_bundle_without_a_window_graph_does_not_look(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "plain.bundle"
    shutil.copytree(tiny_bundle, root)
    document = json.loads((root / "manifest.json").read_text())
    for graph in (document["target"], document["draft"]["graph"]):
        window = graph["engine"].pop("window")
        for name in (window["file"], *window["weights"]):
            document["files"].pop(name, None)
            (root / name).unlink(missing_ok=True)
    (root / "manifest.json").write_text(json.dumps(document))
    monkeypatch.setitem(sys.modules, "specruntime_kernels", package(version=fails(AssertionError("looked"))))
    with open_bundle(root, options=EngineOptions(kernels="auto")) as bundle:
        assert bundle.kernels is None
    with pytest.raises(InvalidArgument, match="'avx2': this bundle holds no graph over the operators"):
        open_bundle(root, options=EngineOptions(kernels="avx2"))


def test_the_window_graph_is_opened_where_they_run(
    window_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kernels = pytest.importorskip("specruntime_kernels")
    with open_bundle(window_bundle, options=EngineOptions(kernels="off")) as bundle:
        plain = complete(bundle.new_session(), IDS, SamplingParams(max_tokens=8)).token_ids
    with caplog.at_level(logging.INFO, "specruntime.engines"), open_bundle(window_bundle) as bundle:
        assert bundle.kernels == kernels.path_name()
        assert opened_file(bundle).endswith("window.onnx")
        assert complete(bundle.new_session(), IDS, SamplingParams(max_tokens=8)).token_ids == plain
    (line,) = [record for record in caplog.records if "target/window.onnx" in record.getMessage()]
    assert f"runs on specruntime-kernels {kernels.version()}, {kernels.path_name()}" in line.getMessage()


def test_a_window_graph_that_does_not_load_gives_the_plain_one(
    tiny_bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kernels = pytest.importorskip("specruntime_kernels")

    def break_it(model: object) -> None:
        model.graph.node[0].op_type = "NoSuchOperator"  # type: ignore[attr-defined]

    root = write_window(tiny_bundle, tmp_path / "bundle", break_it)
    with caplog.at_level(logging.INFO, "specruntime.engines"), open_bundle(root) as bundle:
        assert bundle.kernels is None
        assert len(complete(bundle.new_session(), IDS, SamplingParams(max_tokens=4)).token_ids) == 4
    assert any("NoSuchOperator" in record.getMessage() for record in caplog.records)
    with pytest.raises(BackendIncompatible, match="NoSuchOperator"):
        open_bundle(root, options=EngineOptions(kernels=kernels.path_name()))


def opened_file(bundle: LoadedBundle) -> str:
    """The file of the graph that a session's target runs."""
    session = bundle.new_session()
    try:
        return str(bundle._target.spec.file)
    finally:
        session.close()
