"""What the GPU tests share: a device or a reason to skip, and bundles built once for the library that is installed.

    pytest tests/gpu --gpu-out figures/      all of it in one run; writes gpu.json and gpu.png

Where TensorRT is missing the engine tests skip, and the latency table holds what is installed.
"""

import importlib.util
from pathlib import Path

import pytest
import torch
import yaml
from transformers import PreTrainedModel

from specexport.build import build
from specexport.checkpoints.loading import load_checkpoint
from specexport.recipe.schema import load_recipe
from specruntime.engines.cuda import compute_capability, open_driver
from specruntime.errors import SpecError

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
SMOLLM2 = RECIPES / "smollm2-135m-ngram.yaml"
_RTX_MISSES = {(9, 0), (10, 0), (10, 3)}  # data-centre GPUs that tensorrt_rtx has no kernels for


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpu-out", default="gpu-figures", help="directory for gpu.json and gpu.png")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in Path(item.fspath).parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def capability() -> tuple[int, int]:
    """Compute capability of the device; skips without a device."""
    try:
        return compute_capability(open_driver())
    except SpecError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def library(capability: tuple[int, int]) -> str:
    """The TensorRT library to test: `tensorrt` where it is installed, else `tensorrt_rtx` where it has kernels."""
    if importlib.util.find_spec("tensorrt") is not None:
        return "tensorrt"
    if importlib.util.find_spec("tensorrt_rtx") is not None and capability not in _RTX_MISSES:
        return "tensorrt_rtx"
    pytest.skip(f"no TensorRT library for compute capability {capability[0]}.{capability[1]} is installed")


@pytest.fixture(scope="session")
def bundle(library: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M fp16 with n-gram drafts, compiled by the library under test."""
    return build_variant(tmp_path_factory.mktemp("gpu"), {"kind": library})


def load_on_device() -> PreTrainedModel:
    """SmolLM2-135M fp16 in PyTorch, on the device."""
    model: PreTrainedModel = load_checkpoint(load_recipe(SMOLLM2).target, "fp16").model
    torch.nn.Module.to(model, "cuda")
    model.eval()
    return model


def build_variant(directory: Path, backend: dict[str, object], precision: str = "fp16") -> Path:
    """A bundle of the SmolLM2 recipe with another backend."""
    document = yaml.safe_load(SMOLLM2.read_text())
    document |= {"backend": backend, "precision": precision, "name": f"smollm2-{backend['kind']}"}
    document["parity"] = {"tolerance": 0.5 if precision == "fp16" else 1e-3}
    recipe = directory / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(document))
    return build(load_recipe(recipe), directory / "bundle")
