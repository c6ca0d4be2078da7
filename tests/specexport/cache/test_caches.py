"""What lies in the cache is used as it was written or made again, whatever happened to it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specexport.build import build
from specexport.cache.entries import (
    RECORD_NAME,
    SEAL_NAME,
    cached_entry,
    entry_digest,
    is_intact,
    new_scratch,
)
from specexport.errors import SourceError
from specexport.recipe.schema import load_recipe
from tests.conftest import RECIPES

Damage = Callable[[Path], object]
TINY = load_recipe(RECIPES / "tiny-random.yaml")


def fill(directory: Path) -> None:
    (directory / "below").mkdir()
    (directory / "below" / "file").write_text("right")
    (directory / RECORD_NAME).write_text('{"ends": [256]}')


def become(path: Path, make: Callable[[Path], object]) -> None:
    path.rename(path.parents[1] / "away")
    make(path)


DAMAGES: dict[str, Damage] = {
    "file removed": lambda place: (place / "below" / "file").unlink(),
    "file altered": lambda place: (place / "below" / "file").write_text("wrong"),
    "file added": lambda place: (place / "chat_template.jinja").write_text("{{ x }}"),
    "file became a directory": lambda place: become(place / RECORD_NAME, Path.mkdir),
    "record altered": lambda place: (place / RECORD_NAME).write_text('{"ends": [10]}'),
    "record of another type": lambda place: (place / RECORD_NAME).write_text("[]"),
    "record cut": lambda place: (place / RECORD_NAME).write_text('{"ends": '),
    "record removed": lambda place: (place / RECORD_NAME).unlink(),
    "seal removed": lambda place: (place / SEAL_NAME).unlink(),
    "seal cut": lambda place: (place / SEAL_NAME).write_text((place / SEAL_NAME).read_text()[:-70]),
    "seal no text": lambda place: (place / SEAL_NAME).write_bytes(b"\xff\xfe"),
    "entry became a file": lambda place: become(place, Path.touch),
    "entry became a dead link": lambda place: become(place, lambda path: path.symlink_to("nowhere")),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_entry_is_made_again(tmp_path: Path, name: str) -> None:
    place = tmp_path / "kind" / "entry"
    cached_entry(place, fill)
    before = entry_digest(place)
    DAMAGES[name](place)
    assert not is_intact(place)
    cached_entry(place, fill)
    assert is_intact(place) and entry_digest(place) == before
    assert not list(place.parent.glob(".*"))


def test_an_intact_entry_is_not_made_again_unless_forced(tmp_path: Path) -> None:
    place = cached_entry(tmp_path / "kind" / "entry", fill)
    made = []
    cached_entry(place, lambda directory: made.append(directory))
    assert not made
    cached_entry(place, lambda directory: made.append(directory), force=True)
    assert made and [path.name for path in place.iterdir()] == [SEAL_NAME]


def test_a_forced_entry_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    place = cached_entry(tmp_path / "kind" / "entry", fill)

    def fail(directory: Path) -> None:
        raise SourceError("gone")

    with pytest.raises(SourceError):
        cached_entry(place, fail, force=True)
    assert is_intact(place)


def test_what_a_killed_process_left_goes_at_the_next_use_and_a_live_ones_stays(tmp_path: Path) -> None:
    place = cached_entry(tmp_path / "kind" / "entry", fill)
    script = (
        "import os, signal, sys; from pathlib import Path; from specexport.cache.entries import new_scratch\n"
        "(new_scratch(Path(sys.argv[1])) / 'weights').write_bytes(bytes(9))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, str(place.parent)], check=False)
    assert len(list(place.parent.iterdir())) == 2, "nothing was left behind: nothing is tested"
    own = new_scratch(place.parent)
    cached_entry(place, fill)
    assert set(place.parent.iterdir()) == {place, own}


def test_another_machines_scratch_goes_when_it_is_a_day_old(tmp_path: Path) -> None:
    place = cached_entry(tmp_path / "kind" / "entry", fill)
    young, old = (place.parent / f".partial-0000000{n}-4194305-0" for n in (1, 2))
    young.mkdir()
    old.mkdir()
    os.utime(old, (0, 0))
    cached_entry(place, fill)
    assert young.exists() and not old.exists()


def test_a_write_cut_short_without_error_number_is_a_full_disk(tmp_path: Path) -> None:
    def cut(directory: Path) -> None:
        raise OSError("problem writing element 7168 to file")  # numpy.ndarray.tofile

    with pytest.raises(SourceError, match=r"^disk full: \d+ MB are free for the cache .*; free space there"):
        cached_entry(tmp_path / "kind" / "entry", cut)


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def swap_caches(record: dict[str, Any]) -> None:
    if "spec" not in record:  # of a window graph, which has none of its own
        record["stock"] = ["an operator of another library"]
        return
    first, second = record["spec"]["aliases"][:2]
    first["output"], second["output"] = second["output"], first["output"]


def entries(cache: Path, kind: str) -> list[Path]:
    found = list((cache / kind).iterdir())
    assert found, f"no entry in {kind}: nothing is tested"
    return found


@pytest.mark.slow
def test_damage_in_any_kind_of_entry_never_reaches_a_bundle(cache: Path, tmp_path: Path) -> None:
    def bundle(name: str) -> dict[str, Any]:
        manifest: dict[str, Any] = json.loads((build(TINY, tmp_path / name) / "manifest.json").read_text())
        del manifest["files"]["build.json"]  # holds times
        return manifest

    before = bundle("before")
    for place in entries(cache, "canonical"):
        edit(place / RECORD_NAME, lambda record: record.update(eos_token_ids=[10]))
    for place in entries(cache, "compiled"):
        edit(place / RECORD_NAME, swap_caches)
    for place in entries(cache, "parity"):
        (place / RECORD_NAME).write_text("{")
    for place in entries(cache, "tokenizers"):
        next(place.rglob("tokenizer.json")).unlink()
    assert bundle("after") == before
