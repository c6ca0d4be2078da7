"""Both distributions build, and the runtime alone decodes a bundle on a host that has nothing else."""

import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest

from specruntime import SamplingParams, complete, open_bundle
from tests.conftest import REPOSITORY
from tests.e2e.environments import build_wheel, new_environment

PROMPT = [97, 98, 99, 97, 98, 99, 97]

DATA: dict[str, set[str]] = {
    "specexport": set(),
    "specruntime": {"specruntime/include/specruntime.h", "specruntime/server/page.html"},
}
DECODE_IDS = """
import importlib.util, sys
import specruntime as s
present = [n for n in ("torch", "transformers", "onnx", "specexport") if importlib.util.find_spec(n)]
assert not present, present
with s.open_bundle(sys.argv[1]) as bundle:
    params = s.SamplingParams(max_tokens=24)
    print(*s.complete(bundle.new_session(), [int(i) for i in sys.argv[2:]], params).token_ids)
    try:
        bundle.tokenizer
    except s.BackendMissing as error:
        print(error)
"""
DECODE_TEXT = """
import sys
import specruntime as s
with s.open_bundle(sys.argv[1]) as bundle:
    codec = bundle.tokenizer
    answer = s.complete(bundle.new_session(), codec.encode(sys.argv[2]), s.SamplingParams(max_tokens=24), codec)
    print(repr(answer.text))
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def placed_modules(project: Path, package: str) -> set[str]:
    """Where the wheel must hold each module of the tree: in its package, or where pyproject.toml says."""
    configuration = tomllib.loads((project / "pyproject.toml").read_text())
    moved = configuration["tool"]["hatch"]["build"]["targets"]["wheel"].get("force-include", {})
    modules = (str(path.relative_to(project)) for path in (project / package).rglob("*.py"))
    return {moved.get(module, module) for module in modules}


@pytest.mark.parametrize(
    ("project", "package"),
    [(REPOSITORY, "specexport"), (REPOSITORY / "runtime", "specruntime")],
    ids=["specexport", "specruntime"],
)
def test_the_wheel_holds_the_modules_their_types_the_licence_and_the_command(
    tmp_path: Path, project: Path, package: str
) -> None:
    with zipfile.ZipFile(build_wheel(project, tmp_path)) as wheel:
        names = {name for name in wheel.namelist() if not name.endswith("/")}
        (info,) = {name.partition("/")[0] for name in names if ".dist-info/" in name}
        entry_points = wheel.read(f"{info}/entry_points.txt").decode()
    metadata = {name for name in names if name.startswith(info)}
    assert f"{info}/licenses/LICENSE" in metadata
    assert names - metadata == placed_modules(project, package) | {f"{package}/py.typed"} | DATA[package]
    assert f"{package} = {package}.cli:main" in entry_points


@pytest.mark.slow
def test_the_runtime_alone_decodes_a_bundle(tiny_bundle: Path, runtime_wheel: Path, tmp_path: Path) -> None:
    with open_bundle(tiny_bundle) as bundle:
        params = SamplingParams(max_tokens=24)
        expected = complete(bundle.new_session(speculate=False), PROMPT, params).token_ids
        codec = bundle.tokenizer
        assert codec is not None
        answer = complete(bundle.new_session(speculate=False), codec.encode("abcabca"), params, codec)

    clean = new_environment(tmp_path / "venv")
    clean.install(f"{runtime_wheel}[ort]")
    ids, refusal = run(
        clean.python, "-c", DECODE_IDS, tiny_bundle, *map(str, PROMPT), cwd=tmp_path
    ).splitlines()
    assert [int(token) for token in ids.split()] == list(expected)
    assert "pip install 'specruntime[text]'" in refusal

    clean.install(f"{runtime_wheel}[ort,text]")
    text = run(clean.python, "-c", DECODE_TEXT, tiny_bundle, "abcabca", cwd=tmp_path)
    assert text.strip() == repr(answer.text)
