"""A draft kind that the packages do not know is registered, read from a manifest, opened and decoded with."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import onnx
import pytest

from specruntime import BundleInvalid, SamplingParams, complete, load_manifest, open_bundle
from specruntime.bundle import LoadedBundle
from specruntime.drafts import ENTRY_POINTS, KINDS, ChainSpec, register
from specruntime.errors import InvalidArgument
from specruntime.flat import DraftKind
from specruntime.inspection.summary import render_summary, summarise
from specruntime.manifest.schema import Manifest
from specruntime.statistics import Statistics
from tests.bigram_kind import BigramDraft, bigram_graph, bigram_model

PROMPT = [17, 40, 8, 8, 25]
OPTIONS = {
    "greedy": SamplingParams(max_tokens=40, ignore_eos=True),
    "sampled": SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.8, top_p=0.9, seed=3),
    "rejection": SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.8, seed=3, accept="rejection"),
}


@pytest.fixture
def bigram() -> Iterator[type[BigramDraft]]:
    remove = register(BigramDraft)
    yield BigramDraft
    remove()


@pytest.fixture(scope="module")
def directory(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a small model with a bigram draft of its own text in the place of its draft."""
    root = tmp_path_factory.mktemp("kinds") / "bigram.bundle"
    shutil.copytree(tiny_bundle, root)
    with open_bundle(tiny_bundle) as bundle:
        answer = complete(bundle.new_session(speculate=False), PROMPT, OPTIONS["greedy"]).token_ids
    target = load_manifest(tiny_bundle).target
    onnx.save(bigram_model([*PROMPT, *answer], target.vocab_size), root / "bigram.onnx")
    data = (root / "bigram.onnx").read_bytes()
    document = json.loads((root / "manifest.json").read_text())
    graph = bigram_graph("bigram.onnx", target).model_dump(mode="json")
    document["draft"] = {"kind": "bigram", "k": 3, "graph": graph}
    document["adaptive"] = None
    document["files"]["bigram.onnx"] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    (root / "manifest.json").write_text(json.dumps(document))
    return root


def decode(bundle: LoadedBundle, params: SamplingParams, speculate: bool) -> tuple[list[int], Statistics]:
    session = bundle.new_session(speculate)
    answer = complete(session, PROMPT, params)
    session.close()
    return list(answer.token_ids), answer.stats


@pytest.mark.parametrize("options", OPTIONS)
def test_it_decodes_what_plain_decoding_does(
    directory: Path, bigram: type[BigramDraft], options: str
) -> None:
    with open_bundle(directory) as bundle:
        assert isinstance(bundle.manifest.draft, bigram)
        plain, _ = decode(bundle, OPTIONS[options], speculate=False)
        drafted, stats = decode(bundle, OPTIONS[options], speculate=True)
        assert drafted == plain
        assert stats.proposed > 0 and stats.draft.calls["lookup"] == stats.proposed
        assert stats.accepted > 0 or options != "greedy"


def test_a_dynamic_length_follows_it(directory: Path, bigram: type[BigramDraft], tmp_path: Path) -> None:
    root = tmp_path / "adaptive.bundle"
    shutil.copytree(directory, root)
    document = json.loads((root / "manifest.json").read_text())
    document["adaptive"] = {"step_ms": {}, "draft_ms": {"lookup": 0.01}}
    (root / "manifest.json").write_text(json.dumps(document))
    with open_bundle(root) as bundle:
        plain, _ = decode(bundle, OPTIONS["greedy"], speculate=False)
        drafted, stats = decode(bundle, OPTIONS["greedy"], speculate=True)
        assert drafted == plain and stats.rounds > 0
    document["adaptive"]["draft_ms"] = {"step": 0.01}
    (root / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(BundleInvalid, match=r"adaptive\.draft_ms names 'step', expected one of lookup"):
        load_manifest(root)


def test_its_manifest_is_checked_summed_up_and_written_again(
    directory: Path, bigram: type[BigramDraft], tmp_path: Path
) -> None:
    manifest = load_manifest(directory)
    assert Manifest.model_validate_json(manifest.model_dump_json(), strict=True) == manifest
    assert "drafts   bigram: k 3" in render_summary(summarise(manifest, directory))
    assert manifest.draft.c_number == -1 and "BIGRAM" not in DraftKind.__members__
    for change, phrase in (
        ({"k": 0}, r"draft\.k: found 0, expected greater than or equal to 1"),
        ({"depth": 3}, r"draft\.depth: unknown key, allowed: kind, k, graph"),
        ({"k": 99}, r"draft\.k is 99, but the widest target profile judges"),
    ):
        root = tmp_path / phrase[:9]
        shutil.copytree(directory, root, dirs_exist_ok=True)
        document = json.loads((root / "manifest.json").read_text())
        document["draft"] |= change
        (root / "manifest.json").write_text(json.dumps(document))
        with pytest.raises(BundleInvalid, match=phrase):
            load_manifest(root)


def test_an_installed_distribution_names_its_kind(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an entry point, which is loaded when a manifest has that kind."""
    info = tmp_path / "bigram_drafts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bigram-drafts\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\nbigram = tests.bigram_kind:BigramDraft\n")
    monkeypatch.syspath_prepend(tmp_path)
    known = list(KINDS)
    with pytest.raises(BundleInvalid, match="'trigram'"):
        load_manifest(renamed(directory, tmp_path / "trigram.bundle", "trigram"))
    assert known == KINDS
    try:
        assert load_manifest(directory).draft.kind == "bigram" and [*known, BigramDraft] == KINDS
    finally:
        KINDS[:] = known
        Manifest.model_rebuild(force=True)


def renamed(directory: Path, root: Path, kind: str) -> Path:
    shutil.copytree(directory, root)
    document = json.loads((root / "manifest.json").read_text())
    document["draft"]["kind"] = kind
    (root / "manifest.json").write_text(json.dumps(document))
    return root


def test_a_name_is_taken_once_and_free_again_afterwards(directory: Path) -> None:
    class Other(ChainSpec):
        kind: Literal["other", "ngram"] = "other"

    with pytest.raises(InvalidArgument, match="another draft kind named 'ngram'"):
        register(Other)
    known = list(KINDS)
    register(BigramDraft)()
    assert known == KINDS
    with pytest.raises(BundleInvalid, match=r"draft\.kind: found 'bigram', allowed: none, ngram, model"):
        load_manifest(directory)
