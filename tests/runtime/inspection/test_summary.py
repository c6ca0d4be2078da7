"""What `inspect` says is what the manifest and the files say."""

import json
import os
import shutil
from pathlib import Path

import pytest

from specruntime.bundle import load_manifest, open_bundle
from specruntime.inspection.summary import cache_bytes, graphs_of, render_summary, summarise, weight_bytes
from specruntime.manifest.graph import over_operators


def test_sizes_are_those_of_the_files_and_of_the_buffers(tiny_bundle: Path) -> None:
    manifest = load_manifest(tiny_bundle)
    for role, graph in graphs_of(manifest).items():
        directory = tiny_bundle / role
        assert {*directory.glob("graph.*"), *directory.glob("window.*")} == {*directory.iterdir()}
        for layout, files in ((graph, "graph.*"), (over_operators(graph), "window.*")):
            on_disk = sum(path.stat().st_size for path in directory.glob(files))
            assert weight_bytes(manifest, layout) == on_disk > 0
    with open_bundle(tiny_bundle) as bundle:
        context = bundle._target.new_context()
        assert cache_bytes(manifest.target) == sum(rows.nbytes for rows in context.cache().values())
        context.close()


def test_a_summary_is_json_and_text(tiny_bundle: Path) -> None:
    summary = json.loads(json.dumps(summarise(load_manifest(tiny_bundle), tiny_bundle)))
    assert summary["draft"] == {"kind": "model", "k": 4, "fused": False, "stop_below": None}
    assert set(summary["graphs"]) == {"target", "draft"}
    target = summary["graphs"]["target"]
    assert set(target["step_ms"]) == {str(profile["width"]) for profile in target["profiles"]}
    assert target["parity"]["logit_difference"] <= target["parity"]["tolerance"]
    text = render_summary(summary)
    assert "capacity 256" in text and "verify_5 5" in text and "of PyTorch" in text


def test_what_became_of_the_weights_and_warnings_of_the_build_are_shown(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    record = json.loads((tiny_bundle / "build.json").read_text())
    kept = "1 of 2 weight matrices keep every number of the checkpoint, 1 are rounded"
    record["graphs"]["target"] |= {
        "passes": [{"name": "quantize-weights", "changed": 2, "reasons": ["head: fp32", kept]}],
        "warnings": ["int4 weights choose another token at 27.0 % of positions"],
    }
    (tmp_path / "build.json").write_text(json.dumps(record))
    lines = [
        line.strip() for line in render_summary(summarise(load_manifest(tiny_bundle), tmp_path)).split("\n")
    ]
    assert kept in lines and "head: fp32" not in lines
    assert "warning: int4 weights choose another token at 27.0 % of positions" in lines


BROKEN = {
    "passes as text": b'{"graphs": {"target": {"passes": "x"}}}',
    "warnings as a number": b'{"graphs": {"target": {"warnings": 1}}}',
    "empty": b"",
    "not JSON": b"{",
    "not UTF-8": b'{"versions": {"a": "\xff"}}',
    "deep": b"[" * 100_000,
    "deep and whole": b'{"graphs": {"target": ' + b"[" * 5000 + b"]" * 5000 + b"}}",
    "a list": b"[]",
    "graphs as a list": b'{"graphs": [1]}',
    "a graph as text": b'{"graphs": {"target": "x"}}',
    "step times as a list": b'{"graphs": {"target": {"step_ms": [1]}}}',
    "a step time as text": b'{"graphs": {"target": {"step_ms": {"1": "fast"}}}}',
    "parity as text": b'{"graphs": {"target": {"parity": "x"}}}',
    "parity without numbers": b'{"graphs": {"target": {"parity": {"tokens": 1}}}}',
    "engine as a number": b'{"graphs": {"target": {"engine": 7}}}',
    "report without sizes": b'{"graphs": {"target": {"engine": {"report": {"fused_attention": []}}}}}',
    "sizes beyond any disk": b'{"graphs": {"target": {"engine": {"report": {"engine_bytes": 1'
    + b"0" * 400
    + b"}}}}}",
    "versions as a number": b'{"versions": 3}',
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_build_record_that_says_nonsense_is_none(tiny_bundle: Path, tmp_path: Path, content: bytes) -> None:
    manifest = load_manifest(tiny_bundle, verify=False)
    absent = summarise(manifest, tmp_path)
    (tmp_path / "build.json").write_bytes(content)
    assert summarise(manifest, tmp_path) == absent
    assert "checkpoint not recorded" in render_summary(absent)


def test_a_build_record_is_read_from_a_regular_file_of_the_bundle_only(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    manifest = load_manifest(tiny_bundle, verify=False)
    absent = summarise(manifest, tmp_path)
    os.mkfifo(tmp_path / "build.json")
    assert summarise(manifest, tmp_path) == absent
    (tmp_path / "build.json").unlink()
    (tmp_path / "build.json").symlink_to(tiny_bundle / "build.json")
    assert summarise(manifest, tmp_path) == absent
    (tmp_path / "build.json").unlink()
    shutil.copy(tiny_bundle / "build.json", tmp_path)
    assert summarise(manifest, tmp_path) != absent


def test_a_bundle_without_a_build_record_is_still_described(tiny_bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.bundle"
    shutil.copytree(tiny_bundle, copy)
    manifest = load_manifest(copy, verify=False)
    (copy / "build.json").unlink()
    summary = summarise(manifest, copy)
    assert summary["versions"] == {} and summary["graphs"]["target"]["step_ms"] == {}
    assert "checkpoint not recorded" in render_summary(summary)
