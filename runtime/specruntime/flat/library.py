"""Entries that need no bundle: version, names, error texts, defaults."""

import numpy as np
from numpy.typing import NDArray

from specruntime.abi import ABI_VERSION
from specruntime.abi.structs import OPTIONS, PARAMS
from specruntime.errors import InvalidArgument, InvalidHandle, Status
from specruntime.flat.entry import THREAD_ERRORS, entry
from specruntime.flat.handles import HANDLES
from specruntime.flat.memory import deliver_text


def spx_abi_version() -> int:
    """The version of this interface."""
    return ABI_VERSION


@entry
def spx_status_name(status: int, text: NDArray[np.uint8], capacity: int, needed: NDArray[np.int64]) -> None:
    try:
        name = Status(status).name
    except ValueError:
        raise InvalidArgument(f"status is {status}, expected 0 to {max(Status)}") from None
    deliver_text(name, text, needed)


@entry
def spx_last_error(handle: int, text: NDArray[np.uint8], capacity: int, needed: NDArray[np.int64]) -> None:
    record = HANDLES.find(handle)
    if handle and record is None:
        raise InvalidHandle(f"{handle} is no open handle: ask with 0")
    deliver_text(THREAD_ERRORS.text if record is None else record.error, text, needed)


@entry
def spx_options_init(options: NDArray[np.void], options_size: int) -> None:
    options[:] = OPTIONS.defaults()


@entry
def spx_params_init(params: NDArray[np.void], params_size: int) -> None:
    params[:] = PARAMS.defaults()
