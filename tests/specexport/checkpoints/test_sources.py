"""Local files, wheels by pip, hub snapshots: each failure is one line, and a second build needs no network."""

import base64
import hashlib
import json
import subprocess
import zipfile
from pathlib import Path

import pytest
from huggingface_hub import constants
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from specexport.cache.entries import cached_entry
from specexport.checkpoints.address import parse_address
from specexport.checkpoints.locate import locate
from specexport.errors import SourceError

GGUF = b"GGUF" + bytes(100)
SHA256 = hashlib.sha256(GGUF).hexdigest()
MEMBER = "tiny_model/weights.gguf"
WHEEL = f"pypi://tiny-model==1.0/{MEMBER}"


def one_line(caught: pytest.ExceptionInfo[SourceError]) -> bool:
    return "\n" not in str(caught.value)


def test_a_gguf_file_is_found_and_hashed(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(GGUF)
    located = locate(parse_address(str(tmp_path / "a.gguf")), SHA256)
    assert (located.directory, located.gguf_file, located.digest) == (tmp_path, "a.gguf", SHA256)


def test_local_mistakes_are_named(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(GGUF)
    (tmp_path / "other.gguf").write_bytes(b"PK\x03\x04")
    (tmp_path / "empty").mkdir()
    (tmp_path / "no-weights").mkdir()
    (tmp_path / "no-weights" / "config.json").write_text("{}")
    for name, sha256, message in (
        ("modle.gguf", None, r"no such file; did you mean .*model\.gguf"),
        ("model.gguf", "0" * 64, f"sha256 is {SHA256}, the recipe expects {'0' * 64}"),
        ("other.gguf", None, "not a GGUF file"),
        ("emty", None, "no such directory; did you mean .*empty"),
        ("empty", None, r"no config\.json in it"),
        ("no-weights", None, r"no weights in it, expected \*\.safetensors"),
    ):
        with pytest.raises(SourceError, match=message) as caught:
            locate(parse_address(str(tmp_path / name)), sha256)
        assert one_line(caught)


def write_wheel(directory: Path, content: bytes = GGUF, recorded: bytes | None = None) -> Path:
    """A wheel `tiny-model` 1.0 whose RECORD has the hash of `recorded` (the content itself if not given)."""
    directory.mkdir(exist_ok=True)
    info = "tiny_model-1.0.dist-info"
    digest = hashlib.sha256(content if recorded is None else recorded).digest()
    encoded = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    path = directory / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(MEMBER, content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"{MEMBER},sha256={encoded},{len(content)}\n")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that pip takes for the whole package index."""
    directory = tmp_path / "index"
    directory.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


def test_a_wheels_member_is_taken_once_and_then_without_pip(
    cache: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(index)
    located = locate(parse_address(WHEEL), SHA256)
    assert located.gguf_file is not None
    assert (located.directory / located.gguf_file).read_bytes() == GGUF
    assert located.digest == SHA256
    assert [p.name for p in cache.rglob("*") if p.is_file()] != []
    assert not list(cache.rglob("*.whl")), "the wheel itself is not kept"

    def no_pip(*args: object, **options: object) -> None:
        raise AssertionError("pip was run although the file is in the cache")

    monkeypatch.setattr(subprocess, "run", no_pip)
    assert locate(parse_address(WHEEL), SHA256) == located
    with pytest.raises(SourceError, match=f"sha256 is {SHA256}, the recipe expects {'1' * 64}"):
        locate(parse_address(WHEEL), "1" * 64)


def test_a_damaged_cache_entry_is_fetched_again(cache: Path, index: Path) -> None:
    write_wheel(index)
    located = locate(parse_address(WHEEL))
    file = located.directory / str(located.gguf_file)
    file.write_bytes(GGUF[:-1])
    locate(parse_address(WHEEL))
    assert file.read_bytes() == GGUF


def test_wheel_mistakes_are_named_and_leave_nothing_behind(cache: Path, index: Path) -> None:
    with pytest.raises(SourceError, match=r"pip could not get tiny-model==1\.0: ") as caught:
        locate(parse_address(WHEEL))
    assert one_line(caught)
    write_wheel(index)
    with pytest.raises(
        SourceError, match=rf"has no such member; its \.gguf files: {MEMBER}; did you mean '{MEMBER}'"
    ):
        locate(parse_address("pypi://tiny-model==1.0/tiny_model/weight.gguf"))
    write_wheel(index, recorded=b"other")
    with pytest.raises(SourceError, match=r"the wheel's RECORD says .*; the download is damaged"):
        locate(parse_address(WHEEL))
    write_wheel(index, content=b"not a model")
    with pytest.raises(SourceError, match="not a GGUF file"):
        locate(parse_address(WHEEL))
    assert not [p for p in cache.rglob("*") if p.is_file()]


def test_an_entry_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def fail(scratch: Path) -> None:
        (scratch / "half").write_text("x")
        raise OSError(28, "No space left on device")

    with pytest.raises(
        SourceError, match=r"disk full: \d+ MB are free .*free space there or set SPECEXPORT_CACHE"
    ):
        cached_entry(tmp_path / "cache" / "entry", fail)
    assert list((tmp_path / "cache").iterdir()) == []


def test_of_two_builds_at_once_one_entry_stays(tmp_path: Path) -> None:
    place = tmp_path / "cache" / "entry"

    def faster(scratch: Path) -> None:
        (scratch / "file").write_text("first")

    def slower(scratch: Path) -> None:
        (scratch / "file").write_text("second")
        cached_entry(place, faster)

    assert (cached_entry(place, slower) / "file").read_text() == "first"
    assert list(place.parent.iterdir()) == [place]


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache that holds org/name at main, and no network."""
    directory = tmp_path / "hub"
    snapshot = directory / "models--org--name" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (directory / "models--org--name" / "refs").mkdir()
    (directory / "models--org--name" / "refs" / "main").write_text(COMMIT)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (snapshot / name).write_text("{}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(directory))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return snapshot


def test_a_cached_snapshot_needs_no_network(hub_cache: Path) -> None:
    by_branch, by_commit = (locate(parse_address(f"hub://org/name@{r}")) for r in ("main", COMMIT))
    assert by_branch == by_commit
    assert by_branch.directory == hub_cache


def test_half_a_snapshot_is_not_taken_for_one(hub_cache: Path) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (hub_cache / "model.safetensors.index.json").write_text(json.dumps(index))
    (hub_cache / "model-1.safetensors").write_text("")
    with pytest.raises(
        SourceError, match=r"no model-2\.safetensors in .*; if its download was cut short"
    ) as caught:
        locate(parse_address("hub://org/name@main"))
    assert one_line(caught)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RevisionNotFoundError, "the repository has no revision 'v9'; use a commit id"),
        (GatedRepoError, "access is gated; accept its licence"),
        (RepositoryNotFoundError, "no such repository, or it is private"),
        (ConnectionError, r"the hub could not be reached \(first line\)"),
    ],
)
def test_hub_mistakes_are_named(
    hub_cache: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception], message: str
) -> None:
    import huggingface_hub

    original = huggingface_hub.snapshot_download

    def fail(repository: str, **options: object) -> str:
        if options.get("local_files_only"):
            return str(original(repository, **options))  # type: ignore[call-overload]
        if error is ConnectionError:
            raise error("first line\nsecond line")
        raise error.__new__(error)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(SourceError, match=message) as caught:
        locate(parse_address("hub://org/name@v9"))
    assert one_line(caught)
