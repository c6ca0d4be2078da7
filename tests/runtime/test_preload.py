"""The tokenizer read while engines load: the same one, its hash checked before, its errors where it is used."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from specruntime.bundle import open_bundle
from specruntime.errors import BackendMissing, BundleHashMismatch
from specruntime.text.codec import TextCodec


def test_the_tokenizer_read_ahead_is_the_one_read_on_demand(tiny_bundle: Path) -> None:
    with open_bundle(tiny_bundle) as bundle, open_bundle(tiny_bundle, text=True) as ahead:
        assert bundle.tokenizer is not None and ahead.tokenizer is not None
        assert ahead.tokenizer is ahead.tokenizer
        assert ahead.tokenizer.encode("a b c") == bundle.tokenizer.encode("a b c") != []


def test_it_is_read_once_and_only_where_asked_for(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = watched_reads(monkeypatch)
    open_bundle(tiny_bundle).close()
    assert calls == []
    with open_bundle(tiny_bundle, text=True) as bundle:
        assert bundle.tokenizer is not None
    assert calls == [tiny_bundle.resolve()]


def test_a_file_of_another_hash_is_never_parsed(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = shutil.copytree(tiny_bundle, tmp_path / "bundle")
    file = bundle / json.loads((bundle / "manifest.json").read_bytes())["tokenizer"]["file"]
    file.write_bytes(file.read_bytes()[:-1] + b" ")
    calls = watched_reads(monkeypatch)
    with pytest.raises(BundleHashMismatch):
        open_bundle(bundle, text=True)
    assert calls == []


def test_a_tokenizer_that_cannot_be_read_is_told_by_whoever_needs_it(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(root: Path, spec: Any) -> TextCodec:
        raise BackendMissing("text needs tokenizers")

    monkeypatch.setattr(TextCodec, "open", missing)
    with open_bundle(tiny_bundle, text=True) as bundle:
        bundle.new_session()
        for _ in range(2):
            with pytest.raises(BackendMissing, match="text needs tokenizers"):
                _ = bundle.tokenizer


def watched_reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    calls: list[Path] = []
    read = TextCodec.open

    def watched(root: Path, spec: Any) -> TextCodec:
        calls.append(root)
        return read(root, spec)

    monkeypatch.setattr(TextCodec, "open", watched)
    return calls
