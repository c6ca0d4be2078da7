"""The shared library and a C program that uses it: built with gcc, equal to the library, without leaks of its own."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from specruntime import BackendMissing, InvalidArgument, SamplingParams, complete, open_bundle
from specruntime.abi import ENTRIES
from specruntime.abi.header import header
from specruntime.clib import build_library
from tests.conftest import REPOSITORY

EXAMPLE = REPOSITORY / "runtime" / "examples" / "decode.c"
MISUSE = Path(__file__).with_name("misuse.c")
WARNINGS = ("-std=c99", "-D_GNU_SOURCE", "-pedantic", "-Wall", "-Wextra", "-Werror")
PROMPT = "abcabcabc"
# The example with a leak planted before it: what finds this one would find another.
LEAKING = f"""
#define main example_main
#include "{EXAMPLE}"
#undef main
int main(int argc, char **argv)
{{
    volatile char *lost = malloc(1234);
    lost[0] = 1;
    lost = NULL;
    return example_main(argc, argv);
}}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("c"), "gcc")


def compiled(library: Path, source: Path, *options: str) -> Path:
    place = library.parent
    program = place / source.stem
    command = [
        *("gcc", *WARNINGS, "-g", str(source), f"-I{place}", f"-L{place}", "-lspecruntime", "-lpthread"),
        *(f"-Wl,-rpath,{place}", "-o", str(program), *options),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return program


def run(program: Path, *arguments: str | Path, timeout: int = 120) -> subprocess.CompletedProcess[str]:
    command = [str(part) for part in (program, *arguments)]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout)


@pytest.fixture(scope="module")
def example(library: Path) -> Path:
    return compiled(library, EXAMPLE)


def test_the_library_exports_every_entry_and_its_header_says_the_same(library: Path) -> None:
    table = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    )
    exported = {line.split()[-1] for line in table.stdout.splitlines()}
    assert {name for name in exported if name.startswith("spx_")} == set(ENTRIES)
    assert (library.parent / "specruntime.h").read_text() == header()
    assert {path.name for path in library.parent.iterdir()} >= {library.name, "specruntime.h"}
    assert not list(library.parent.glob("_specruntime*"))


def test_a_c_program_streams_the_answer_of_the_library(example: Path, tiny_bundle: Path) -> None:
    with open_bundle(tiny_bundle) as bundle:
        codec = bundle.tokenizer
        assert codec is not None
        answer = complete(bundle.new_session(), codec.encode(PROMPT), SamplingParams(max_tokens=24), codec)
    done = run(example, tiny_bundle, PROMPT, "24")
    assert (done.returncode, done.stdout) == (0, answer.text + "\n"), done.stderr
    assert f"{len(answer.token_ids)} tokens in " in done.stderr


def test_a_c_program_is_told_what_failed(example: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    done = run(example, tmp_path / "none", PROMPT, "4")
    assert done.returncode == 1 and "open: status 4: no bundle at" in done.stderr
    done = run(example, tiny_bundle, "a" * 300, "4")
    assert done.returncode == 1 and "decode: status 9: " in done.stderr and "capacity" in done.stderr
    done = run(example, tiny_bundle, PROMPT, "-4")
    assert done.returncode == 1 and "max_tokens is -4" in done.stderr
    assert run(example).returncode == 2


def test_every_mistake_of_a_c_caller_has_its_status(library: Path, tiny_bundle: Path) -> None:
    done = run(compiled(library, MISUSE), tiny_bundle)
    assert (done.returncode, done.stdout) == (0, "sound\n"), done.stderr


def owned(error: ElementTree.Element, program: Path) -> bool:
    """Whether the innermost frame outside the allocator is the program's own code."""
    for frame in error.iter("frame"):
        if "vgpreload" not in frame.findtext("obj", ""):
            return frame.findtext("obj", "") == str(program)
    return False


@pytest.fixture(scope="module")
def findings(library: Path, tiny_bundle: Path) -> Iterator[tuple[list[ElementTree.Element], Path]]:
    """What memcheck says of the example with its planted leak, and the program."""
    source = library.parent / "leaking.c"
    source.write_text(LEAKING)
    program, report = compiled(library, source), library.parent / "memcheck.xml"
    options = (
        "--leak-check=full",
        "--xml=yes",
        f"--xml-file={report}",
        "--show-leak-kinds=definite,indirect",
    )
    done = subprocess.run(
        ["valgrind", *options, str(program), str(tiny_bundle), PROMPT, "6"],
        capture_output=True,
        timeout=550,
        env={**os.environ, "PYTHONMALLOC": "malloc"},
    )
    assert done.returncode == 0, done.stderr
    yield list(ElementTree.parse(report).getroot().iter("error")), program


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="no valgrind here: apt-get install valgrind")
def test_the_c_program_has_no_leak_or_error_but_the_planted_one(
    findings: tuple[list[ElementTree.Element], Path],
) -> None:
    errors, program = findings
    own = [error for error in errors if owned(error, program)]
    assert [error.findtext("kind") for error in own] == ["Leak_DefinitelyLost"]
    assert own[0].findtext("xwhat/leakedbytes") == "1234"


def test_what_is_missing_to_build_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendMissing, match="C compiler 'no-such-cc' not found"):
        build_library(tmp_path, "no-such-cc")
    with pytest.raises(InvalidArgument, match="refuses"):
        build_library(tmp_path, "false")
    monkeypatch.setattr("sysconfig.get_config_var", lambda name: 0)
    with pytest.raises(BackendMissing, match="--enable-shared"):
        build_library(tmp_path, "gcc")
