"""The cache is listed and kept within its limit: the least recently used goes, and never what a build uses."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from specexport.build import build
from specexport.cache.contents import (
    DEFAULT_LIMIT,
    KINDS,
    LIMIT_VARIABLE,
    cache_entries,
    cache_limit,
    parse_age,
    prune_cache,
)
from specexport.cache.entries import SEAL_NAME, cached_entry, entries_held, hold, is_intact, taken
from specexport.cli import main
from specexport.context import BuildContext
from specexport.dry_run import estimate
from specexport.errors import SourceError
from specexport.recipe.schema import load_recipe
from specruntime.errors import InvalidArgument
from tests.conftest import RECIPES

HOUR, DAY = 3600.0, 86_400.0
BYTES = 1000


def made(cache: Path, kind: str, name: str, age: float = 0.0, size: int = BYTES) -> Path:
    """An entry of `size` bytes that was last used `age` seconds ago."""
    place = cache / kind / name
    cached_entry(place, lambda scratch: write(scratch / "file", size))
    return aged(place, age)


def write(path: Path, size: int) -> None:
    path.write_bytes(bytes(size))


def aged(place: Path, age: float) -> Path:
    os.utime(place, (time.time() - age,) * 2)
    return place


def names(cache: Path) -> list[str]:
    assert cache.is_dir()
    return [entry.name for entry in cache_entries()]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["cache", *arguments])


def test_entries_of_every_kind_are_listed_by_their_last_use(cache: Path) -> None:
    ages = {
        "parity": 5.0,
        "canonical": 50.0,
        "compiled": 3.0,
        "tokenizers": 4.0,
        "engines": 2.0,
        "fidelity": 1.0,
    }
    for kind, days in ages.items():
        made(cache, kind, f"of-{kind}", days * DAY)
    made(cache, "wheels", "dist-1.0/model.gguf", 60 * DAY)
    (cache / "timings").mkdir()
    write(cache / "timings" / "tensorrt.cache", 10)
    aged(cache / "timings" / "tensorrt.cache", 70 * DAY)
    (cache / "bundles" / "x-0").mkdir(parents=True)
    write(cache / "bundles" / "x-0" / "manifest.json", 10)
    aged(cache / "bundles" / "x-0", 80 * DAY)
    found = cache_entries()
    assert [entry.kind for entry in found] == [
        "bundles", "timings", "wheels", "canonical", "parity", "tokenizers", "compiled", "engines", "fidelity",
    ]  # fmt: skip
    assert set(KINDS) == {entry.kind for entry in found}
    assert found[2].name == "dist-1.0/model.gguf" and found[2].as_dict()["downloaded"] is True
    assert BYTES < found[2].bytes < BYTES + 200, "its seal counts"
    listed = json.loads(run("list", "--json").stdout)
    assert [entry["name"] for entry in listed["entries"]] == [entry.name for entry in found]
    assert (listed["directory"], listed["limit_bytes"]) == (str(cache), 20 * 10**9)
    shown = run("list").stdout
    assert "wheels: 1 entry, 1.1 kB (files out of wheels, downloaded)" in shown
    assert shown.splitlines()[-1].startswith(f"{cache}: 9 entries, ") and "limit 20.0 GB" in shown


def test_a_use_is_noted_whatever_it_finds_and_what_is_damaged_is_no_use(cache: Path) -> None:
    first, second = (made(cache, "canonical", name, 9 * DAY) for name in ("first", "second"))
    assert names(cache) == ["first", "second"]
    cached_entry(first, lambda scratch: pytest.fail("it is there"))
    assert names(cache) == ["second", "first"]
    assert hold(second / SEAL_NAME) and names(cache) == ["first", "second"]
    assert not hold(second / "gone") and not hold(cache / "canonical" / "third" / SEAL_NAME)


def test_the_oldest_go_first_and_only_as_many_as_must(cache: Path) -> None:
    for day in range(1, 6):
        made(cache, "compiled", f"used-{day}-days-ago", day * DAY)
    size = cache_entries()[0].bytes
    pruned = prune_cache(max_bytes=3 * size)
    assert [entry.name for entry in pruned.removed] == ["used-5-days-ago", "used-4-days-ago"]
    assert pruned.bytes == 3 * size and not pruned.kept
    assert names(cache) == ["used-3-days-ago", "used-2-days-ago", "used-1-days-ago"]
    assert prune_cache(max_bytes=3 * size).removed == ()
    assert [entry.name for entry in prune_cache(older_than=1.5 * DAY).removed] == names_of(3, 2)
    assert names(cache) == ["used-1-days-ago"]
    assert [path.name for path in (cache / "compiled").iterdir()] == ["used-1-days-ago"], (
        "nothing half removed"
    )


def names_of(*days: int) -> list[str]:
    return [f"used-{day}-days-ago" for day in days]


def test_what_is_not_the_caches_is_left_alone(cache: Path) -> None:
    made(cache, "canonical", "own", DAY)
    (cache / "papers").mkdir()
    write(cache / "papers" / "thesis", 9)
    write(cache / "notes", 9)
    (cache / "canonical" / ".partial-0-0-0").mkdir()  # of another machine
    assert [entry.name for entry in prune_cache(max_bytes=0).removed] == ["own"]
    assert (cache / "papers" / "thesis").exists() and (cache / "notes").exists()
    assert (cache / "canonical" / ".partial-0-0-0").exists()


def test_an_empty_or_missing_cache_is_pruned(cache: Path) -> None:
    assert (prune_cache(older_than=0, max_bytes=0).bytes, run("list").exit_code) == (0, 0)
    assert not cache.exists()


def test_the_last_file_of_a_wheel_takes_its_directory_along(cache: Path) -> None:
    for member in ("a.gguf", "b.gguf"):
        made(cache, "wheels", f"dist-1.0/{member}", DAY if member == "a.gguf" else 2 * DAY)
    prune_cache(older_than=1.5 * DAY)
    assert [path.name for path in (cache / "wheels" / "dist-1.0").iterdir()] == ["a.gguf"]
    prune_cache(older_than=0.5 * DAY)
    assert not (cache / "wheels" / "dist-1.0").exists()


def test_what_a_build_of_this_process_uses_stays_until_it_ends(cache: Path) -> None:
    used, free = made(cache, "canonical", "used", 3 * DAY), made(cache, "canonical", "free", 2 * DAY)
    with entries_held():
        cached_entry(used, lambda scratch: pytest.fail("it is there"))
        with entries_held():
            new = made(cache, "canonical", "new", 4 * DAY)
        aged(used, 3 * DAY)
        pruned = prune_cache(max_bytes=1)
        assert ([e.name for e in pruned.removed], [e.name for e in pruned.kept]) == (
            ["free"],
            ["new", "used"],
        )
        assert is_intact(used) and is_intact(new) and not free.exists()
    assert len(prune_cache(max_bytes=1).removed) == 2


def test_what_another_process_uses_stays_until_it_ends_even_if_it_is_killed(cache: Path) -> None:
    place = made(cache, "canonical", "used", 3 * DAY)
    script = (
        "import sys; from pathlib import Path; from specexport.cache.entries import cached_entry\n"
        "from specexport.cache.entries import entries_held\n"
        "with entries_held():\n"
        "    cached_entry(Path(sys.argv[1]), lambda scratch: None)\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        aged(place, 3 * DAY)
        assert [entry.name for entry in prune_cache(max_bytes=1).kept] == ["used"] and is_intact(place)
        shown = run("prune", "--max-size", "1")
        assert "removed: 0 entries" in shown.stdout and "in use by a build, and kept: 1 entry" in shown.stdout
        other.kill()
    assert [entry.name for entry in prune_cache(max_bytes=1).removed] == ["used"]


def refuse_locks(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def flock(descriptor: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)


@pytest.mark.parametrize("number", [errno.EBADF, errno.EIO, errno.EINTR, errno.EWOULDBLOCK])
def test_an_entry_whose_lock_is_refused_counts_as_in_use(
    cache: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    place = made(cache, "canonical", "entry", DAY)
    refuse_locks(monkeypatch, number)
    assert [entry.name for entry in prune_cache(max_bytes=1).kept] == ["entry"] and is_intact(place)
    with pytest.raises(SourceError, match=r"the cache entry .*/canonical/entry cannot be locked: "):
        hold(place / SEAL_NAME)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_still_has_a_cache(
    cache: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    refuse_locks(monkeypatch, number)
    place = made(cache, "canonical", "entry", DAY)
    assert hold(place / SEAL_NAME)
    aged(place, DAY)
    assert [entry.name for entry in prune_cache(max_bytes=1).removed] == ["entry"]


def test_an_exclusive_lock_is_asked_of_a_descriptor_open_for_writing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS refuses it to any other, and a shared one to a descriptor that cannot be read (flock(2))."""

    def flock(descriptor: int, how: int) -> None:
        access = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        if access not in ((os.O_WRONLY, os.O_RDWR) if how & fcntl.LOCK_EX else (os.O_RDONLY, os.O_RDWR)):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr("fcntl.flock", flock)
    place = made(cache, "canonical", "entry", DAY)
    assert hold(place / SEAL_NAME)
    aged(place, DAY)
    assert [entry.name for entry in prune_cache(max_bytes=1).removed] == ["entry"]


def test_an_entry_that_is_used_while_it_is_chosen_stays(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = made(cache, "canonical", "entry", DAY)
    stale = cache_entries()
    os.utime(place)
    monkeypatch.setattr("specexport.cache.contents.cache_entries", lambda: stale)
    assert prune_cache(max_bytes=1).kept == tuple(stale) and is_intact(place)


def test_an_entry_that_goes_while_a_build_waits_for_it_is_made_again(cache: Path) -> None:
    place = made(cache, "canonical", "entry")
    with taken(place / SEAL_NAME) as free:
        assert free
        place.rename(cache / "away")
    assert not hold(place / SEAL_NAME)
    cached_entry(place, lambda scratch: write(scratch / "file", 3))
    assert (place / "file").stat().st_size == 3


@pytest.mark.parametrize(
    ("text", "limit"), [("", 20 * 10**9), ("3GB", 3 * 10**9), ("1GiB", 2**30), ("none", None), ("None", None)]
)
def test_the_limit_is_a_size_or_none(monkeypatch: pytest.MonkeyPatch, text: str, limit: int | None) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, text)
    assert cache_limit() == limit and DEFAULT_LIMIT == "20GB"


@pytest.mark.parametrize("text", ["much", "-1GB", "3XB", "0"])
def test_another_limit_is_refused_before_anything_is_built(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, text)
    with pytest.raises(
        SourceError, match=r"SPECEXPORT_CACHE_LIMIT is .*expected a size such as 8GB.*or none"
    ):
        build(load_recipe(RECIPES / "tiny-random.yaml"), tmp_path / "x.bundle")
    with pytest.raises(SourceError, match="SPECEXPORT_CACHE_LIMIT is"):
        estimate(load_recipe(RECIPES / "tiny-random.yaml"), tmp_path / "x.bundle", lambda stage: None)
    assert not cache.exists()
    refused = run("list")
    assert refused.exit_code == 1 and len(refused.stderr.splitlines()) == 1


def test_a_build_keeps_the_cache_within_its_limit_and_what_it_used_itself(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in (3, 2, 1):
        made(cache, "compiled", f"used-{day}-days-ago", day * DAY)
    said: list[str] = []
    monkeypatch.setenv(LIMIT_VARIABLE, "1KB")
    build(
        load_recipe(RECIPES / "tiny-random.yaml"), tmp_path / "x.bundle", BuildContext(announce=said.append)
    )
    assert not set(names(cache)) & set(names_of(1, 2, 3))
    kinds = {entry.kind for entry in cache_entries()}
    assert kinds == {"canonical", "compiled", "parity", "tokenizers"}, "its own entries"
    assert said[-1].startswith("removed from the cache, not used for longest: 3 entries, 3.")
    made(cache, "compiled", "used-9-days-ago", 9 * DAY)
    build(
        load_recipe(RECIPES / "tiny-random.yaml"), tmp_path / "x.bundle", BuildContext(announce=said.append)
    )
    assert said[-2] == "nothing changed" and said[-1].startswith("removed from the cache")
    assert not set(names(cache)) & set(names_of(9))


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        ((), ["fresh", "young", "old"]),
        (("--older-than", "12h"), ["fresh"]),
        (("--older-than", "7d"), ["fresh", "young"]),
        (("--max-size", "1500"), ["fresh"]),
        (("--older-than", "7d", "--max-size", "1500"), ["fresh"]),
        (("--older-than", "100w"), ["fresh", "young", "old"]),
    ],
)
def test_the_command_removes_what_it_is_asked_to(
    cache: Path, arguments: tuple[str, ...], left: list[str]
) -> None:
    for name, age in (("old", 9 * DAY), ("young", DAY), ("fresh", 0.0)):
        made(cache, "canonical", name, age)
    found = json.loads(run("prune", *arguments, "--json").stdout)
    assert names(cache)[::-1] == left
    assert len(found["removed"]) == 3 - len(left) and found["kept"] == []
    assert found["bytes"] == sum(entry.bytes for entry in cache_entries())


@pytest.mark.parametrize(
    "arguments", [("--older-than", "soon"), ("--older-than", "7"), ("--max-size", "big")]
)
def test_ages_and_sizes_that_are_none_are_refused(cache: Path, arguments: tuple[str, str]) -> None:
    made(cache, "canonical", "entry", 900 * DAY)
    done = run("prune", *arguments)
    assert done.exit_code == 1 and arguments[0] in done.stderr and "expected" in done.stderr
    assert names(cache) == ["entry"]


def test_ages_are_read_as_people_write_them() -> None:
    assert [parse_age(text, "x") for text in ("90s", "30m", "1.5h", "7d", " 2 w ")] == [
        90.0, 1800.0, 1.5 * HOUR, 7 * DAY, 14 * DAY,
    ]  # fmt: skip
    with pytest.raises(InvalidArgument, match="x is '7 days', expected an age such as 30m"):
        parse_age("7 days", "x")
