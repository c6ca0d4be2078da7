"""Whether this machine can build what a backend asks for. Asked before a checkpoint is fetched; loads no PyTorch."""

from collections.abc import Collection
from importlib.metadata import version
from importlib.util import find_spec

from specexport.recipe.weights import EngineWeights
from specexport.tensorrt.capability import CAPABILITIES, least_capability
from specexport.tensorrt.options import TensorRTBackend
from specruntime.engines.cuda import compute_capability, open_driver
from specruntime.engines.tensorrt_library import Library, load_library
from specruntime.errors import BackendIncompatible, BackendMissing

MODELOPT = "nvidia-modelopt"


def require_modelopt(weights: EngineWeights) -> str:
    """Return the version that will quantise. Raises `BackendMissing` where ModelOpt is not installed."""
    if find_spec("modelopt") is None:
        raise BackendMissing(
            f"weights.format: {weights.format} is made by NVIDIA ModelOpt, which is not installed; "
            "run `pip install 'specexport[modelopt]'`"
        )
    return version(MODELOPT)


def check_machine(backend: TensorRTBackend, formats: Collection[str] = ()) -> Library:
    """Return the library that will build an engine over numbers in `formats`. Raises `BackendMissing` or
    `BackendIncompatible` when this machine cannot."""
    library = load_library(backend.kind)
    if CAPABILITIES[backend.kind].builds_without_gpu:
        return library
    try:
        driver = open_driver()
    except (BackendMissing, BackendIncompatible) as error:
        raise type(error)(
            f"{backend.kind} builds engines on the GPU they will run on: {error}; build on the GPU host, or use "
            "backend.kind: tensorrt_rtx, which builds without one"
        ) from None
    found, least = compute_capability(driver), least_capability(formats)
    if found < least:
        raise BackendIncompatible(
            f"found a GPU of compute capability {found[0]}.{found[1]}, expected {least[0]}.{least[1]} or newer for "
            f"{' and '.join(formats)}; build on such a GPU, or choose another weights.format or precision"
        )
    return library
