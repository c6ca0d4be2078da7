"""Whether this machine can build what a backend asks for. Asked before a checkpoint is fetched; loads no PyTorch."""

from specexport.tensorrt.capability import CAPABILITIES
from specexport.tensorrt.options import TensorRTBackend
from specruntime.engines.cuda_driver import open_driver
from specruntime.engines.tensorrt_library import Library, load_library
from specruntime.errors import BackendIncompatible, BackendMissing


def check_machine(backend: TensorRTBackend) -> Library:
    """The library that will build. Raises `BackendMissing` or `BackendIncompatible` when this machine cannot."""
    library = load_library(backend.kind)
    if CAPABILITIES[backend.kind].builds_without_gpu:
        return library
    try:
        open_driver()
    except (BackendMissing, BackendIncompatible) as error:
        raise type(error)(
            f"{backend.kind} builds engines on the GPU they will run on: {error}; build on the GPU host, or use "
            "backend.kind: tensorrt_rtx, which builds without one"
        ) from None
    return library
