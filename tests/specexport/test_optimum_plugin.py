"""`optimum-cli export specexport` reaches the build and answers mistakes in one line."""

import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from shutil import copyfile

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
INSTALLED_AS = "optimum/commands/register/register_specexport.py"


def registered(tmp_path: Path) -> dict[str, str]:
    """An environment in which the plug-in is installed, even where the distribution is used from its tree."""
    path = [str(REPOSITORY), str(REPOSITORY / "runtime")]
    if find_spec("optimum.commands.register") is None:
        destination = tmp_path / "site" / INSTALLED_AS
        destination.parent.mkdir(parents=True)
        copyfile(REPOSITORY / "specexport" / "optimum_register.py", destination)
        path.append(str(tmp_path / "site"))
    return {"PYTHONPATH": ":".join(path), "PATH": str(Path(sys.executable).parent), "HOME": str(tmp_path)}


def optimum_cli(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "optimum.commands.optimum_cli", "export", "specexport", *arguments]
    return subprocess.run(
        command,
        env=registered(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_wheel_puts_the_plugin_where_optimum_looks() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included["specexport/optimum_register.py"] == INSTALLED_AS


def test_a_mistake_is_one_line_and_exit_1(tmp_path: Path) -> None:
    result = optimum_cli(tmp_path, "missing.yaml")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "error: missing.yaml: no such recipe file"


def test_wrong_usage_is_exit_2(tmp_path: Path) -> None:
    assert optimum_cli(tmp_path).returncode == 2


def test_the_command_builds_with_its_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from argparse import ArgumentParser

    import specexport.build
    from specexport.context import BuildContext
    from specexport.optimum_plugin import SpecexportExportCommand

    calls: list[tuple[object, ...]] = []

    def build(recipe: object, output: Path, context: BuildContext) -> Path:
        calls.append((getattr(recipe, "name", None), output, context.force))
        return output

    monkeypatch.setattr(specexport.build, "build", build)
    parser = ArgumentParser()
    subparsers = parser.add_subparsers()
    SpecexportExportCommand(subparsers)
    recipe = str(REPOSITORY / "recipes" / "tiny-random.yaml")
    arguments = parser.parse_args(["specexport", recipe, "-o", "out.bundle", "--force"])
    arguments.func(arguments).run()
    assert calls == [("tiny-random", Path("out.bundle"), True)]
    assert capsys.readouterr().out == "out.bundle\n"
