"""What `inspect` says is what the manifest and the files say."""

import json
import shutil
from pathlib import Path

from specruntime.bundle import load_manifest, open_bundle
from specruntime.summary import cache_bytes, graphs_of, render_summary, summarise, weight_bytes


def test_sizes_are_those_of_the_files_and_of_the_buffers(tiny_bundle: Path) -> None:
    manifest = load_manifest(tiny_bundle)
    for role, graph in graphs_of(manifest).items():
        on_disk = sum(path.stat().st_size for path in (tiny_bundle / role).iterdir())
        assert weight_bytes(manifest, graph) == on_disk > 0
    with open_bundle(tiny_bundle) as bundle:
        context = bundle._target.new_context()
        assert cache_bytes(manifest.target) == sum(rows.nbytes for rows in context.cache().values())
        context.close()


def test_a_summary_is_json_and_text(tiny_bundle: Path) -> None:
    summary = json.loads(json.dumps(summarise(load_manifest(tiny_bundle), tiny_bundle)))
    assert summary["draft"] == {"kind": "model", "k": 4}
    assert set(summary["graphs"]) == {"target", "draft"}
    target = summary["graphs"]["target"]
    assert set(target["step_ms"]) == {str(profile["width"]) for profile in target["profiles"]}
    assert target["parity"]["logit_difference"] <= target["parity"]["tolerance"]
    text = render_summary(summary)
    assert "capacity 256" in text and "verify_5 5" in text and "of PyTorch" in text


def test_a_bundle_without_a_build_record_is_still_described(tiny_bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.bundle"
    shutil.copytree(tiny_bundle, copy)
    manifest = load_manifest(copy)
    (copy / "build.json").unlink()
    summary = summarise(manifest, copy)
    assert summary["versions"] == {} and summary["graphs"]["target"]["step_ms"] == {}
    assert "checkpoint not recorded" in render_summary(summary)
