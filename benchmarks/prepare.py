"""Makes what the systems need and keeps it under .work/: environments with pinned versions, models in their formats.

A system that cannot be prepared on this machine is reported with the last line of what its installer said, and left
out of the run.
"""

import subprocess
import sys
from pathlib import Path

from specexport.build import build
from specexport.checkpoints.address import parse_address
from specexport.checkpoints.locate import locate
from specexport.recipe.schema import load_recipe

HERE = Path(__file__).resolve().parent
WORK = HERE / ".work"
RECIPES = HERE.parent / "recipes"
_WITHOUT = "# without: "  # in a list of pins: a package that another one asks for and nothing here needs
_BUNDLES = {
    "bundle-fp32": "ngram",
    "bundle-int8": "int8",
    "bundle-int8-fast": "int8-fast",
    "bundle-int4": "int4",
    "bundle-adaptive": "adaptive",
    "bundle-int8-best": "int8-best",
}


class NotPrepared(Exception):
    """One line that says what could not be made, and why."""


def environment(name: str) -> Path:
    """The Python of an environment, made when first asked for."""
    if name == "own":
        return Path(sys.executable)
    place = WORK / "environments" / name
    python, ready = place / "bin" / "python", place / ".ready"
    pins = (HERE / "environments" / f"{name}.txt").read_text()
    if ready.is_file() and ready.read_text() == pins:
        return python
    _run([sys.executable, "-m", "venv", "--clear", str(place)], f"the environment {name}")
    install = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "-r",
        str(HERE / "environments" / f"{name}.txt"),
    ]
    _run(install, f"the environment {name}")
    for unwanted in (line.removeprefix(_WITHOUT) for line in pins.splitlines() if line.startswith(_WITHOUT)):
        _run([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", unwanted], f"the environment {name}")
    ready.write_text(pins)
    return python


def model(name: str) -> Path:
    """The model of that name, made when first asked for."""
    if name in _BUNDLES:
        recipe = load_recipe(RECIPES / f"smollm2-135m-{_BUNDLES[name]}.yaml")
        return build(recipe, WORK / "models" / f"{name}.bundle")
    if name == "gguf":
        return _gguf()
    place = WORK / "models" / name
    if (place / ".ready").is_file():
        return place
    place.mkdir(parents=True, exist_ok=True)
    if name == "checkpoint":
        _save_checkpoint(place)
    elif name == "openvino":
        tool = environment("openvino").with_name("optimum-cli")
        source = str(model("checkpoint"))
        task = ["--task", "text-generation-with-past", "--weight-format", "fp16"]
        _run([str(tool), "export", "openvino", "-m", source, *task, str(place)], f"the model {name}")
    else:
        precision = name.removeprefix("genai-")
        builder = [str(environment("onnxruntime-genai")), "-m", "onnxruntime_genai.models.builder"]
        paths = ["-i", str(model("checkpoint")), "-o", str(place), "-c", str(WORK / "builder-cache")]
        _run([*builder, *paths, "-p", precision, "-e", "cpu"], f"the model {name}")
    (place / ".ready").touch()
    return place


def _gguf() -> Path:
    target = load_recipe(RECIPES / "smollm2-135m-ngram.yaml").target
    assert isinstance(target.source, str)
    found = locate(parse_address(target.source), target.sha256)
    assert found.gguf_file is not None
    return Path(found.directory) / found.gguf_file


def _save_checkpoint(place: Path) -> None:
    from shutil import copytree

    from specexport.checkpoints.loading import load_checkpoint

    loaded = load_checkpoint(load_recipe(RECIPES / "smollm2-135m-ngram.yaml").target, "fp32")
    # Its weights are plain fp32 by now; transformers refuses to save what still says that it came from a GGUF file.
    loaded.model.hf_quantizer = None
    if hasattr(loaded.model.config, "quantization_config"):
        del loaded.model.config.quantization_config
    loaded.model.save_pretrained(place)
    assert loaded.tokenizer is not None
    copytree(loaded.tokenizer, place, dirs_exist_ok=True)


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing was said").splitlines()[-1]
        raise NotPrepared(f"{what} could not be made: {said}")
