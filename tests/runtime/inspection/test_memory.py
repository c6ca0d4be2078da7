"""The memory a bundle needs is known before it is opened, and matches what a session then takes."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from specruntime import InvalidArgument, open_bundle
from specruntime.bundle import load_manifest
from specruntime.cli import main
from specruntime.inspection.memory import memory_of, parse_size
from specruntime.inspection.summary import shown_size


def inspect(*arguments: object) -> str:
    done = CliRunner().invoke(main, ["inspect", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_caches_and_buffers_of_a_session_are_those_that_were_told(tiny_bundle: Path) -> None:
    stated = memory_of(load_manifest(tiny_bundle, verify=False))
    assert stated.draft is not None
    with open_bundle(tiny_bundle, verify=False) as bundle:
        context = bundle.new_session()._feeder.context
        cached = sum(array.nbytes for array in context.cache().values())
        assert stated.target.token * stated.target.capacity == cached
        staged = 0
        for profile in context.spec.profiles:
            window = context.window(profile.name)
            arrays = [window.input_ids, window.cache_length, window.top_ids, context.logits(window)]
            staged += sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
        assert 0.9 * stated.target.buffers <= staged <= 1.1 * stated.target.buffers
    opened = "graph.*" if bundle.kernels is None else "window.*"
    assert stated.target.weights == sum(path.stat().st_size for path in (tiny_bundle / "target").glob(opened))


def test_a_budget_is_divided_with_and_without_the_draft(tiny_bundle: Path) -> None:
    memory = memory_of(load_manifest(tiny_bundle, verify=False))
    assert memory.draft is not None
    weights, row = memory.target.weights + memory.draft.weights, memory.target.row + memory.draft.row
    both = memory.room(weights + 3.5 * row, with_draft=True)
    assert both.rows == 3 and both.left == 3.5 * row
    assert memory.room(weights + 3.5 * row, with_draft=False).rows >= 7
    assert both.context == int(
        (both.left - memory.target.buffers - memory.draft.buffers)
        // (memory.target.token + memory.draft.token)
    )
    assert memory.room(10, with_draft=True).rows == 0 and memory.room(10, with_draft=True).left < 0


def test_the_command_prints_it(tiny_bundle: Path) -> None:
    stated = json.loads(inspect(tiny_bundle, "--memory", "--budget", "64MB", "--json"))
    assert stated["budget_mb"] == 64 and stated["with_draft"]["rows"] < stated["without_draft"]["rows"]
    assert 0 < stated["draft_row_share"] < 1
    lines = inspect(tiny_bundle, "--memory", "--budget", "1KB").splitlines()
    assert [line.split()[0] for line in (lines[1], lines[3], lines[5])] == ["target", "draft", "share"]
    assert "budget" in lines[6] and "too large" in lines[7]
    assert "budget" not in inspect(tiny_bundle, "--memory")
    assert CliRunner().invoke(main, ["inspect", str(tiny_bundle), "--budget", "1GB"]).exit_code == 2


@pytest.mark.parametrize(
    ("megabytes", "shown"),
    [
        (0, "0 bytes"),
        (7e-6, "7 bytes"),
        (1e-3, "1.0 kB"),
        (0.1404, "140.4 kB"),
        (1, "1.0 MB"),
        (538.06, "538.1 MB"),
        (20_000, "20.0 GB"),
    ],
)
def test_a_size_is_shown_in_a_unit_that_shows_something(megabytes: float, shown: str) -> None:
    assert shown_size(megabytes) == shown


def test_no_size_of_a_tiny_bundle_is_shown_as_nothing(tiny_bundle: Path) -> None:
    for options in ((), ("--memory",)):
        stated = inspect(tiny_bundle, *options)
        assert " kB" in stated and "0.0 MB" not in stated and "0.0 kB" not in stated


@pytest.mark.parametrize(
    ("text", "size"), [("8GB", 8 * 10**9), ("1.5 GiB", 3 * 2**29), ("512mb", 512 * 10**6), ("7", 7)]
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text, "--budget") == size


@pytest.mark.parametrize("text", ["", "GB", "8 TBs", "-1GB", "0", "1e9", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^--budget is .* such as 8GB"):
        parse_size(text, "--budget")
