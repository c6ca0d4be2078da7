"""Giving back the pages of weight files that were read only to be repacked.

ONNX Runtime maps a bundle's weight file and copies most tensors into its own packed layout. A tensor that is also read
unpacked (a tied embedding) stays mapped as a whole, so a full extra copy of it counts as resident. The pages are clean
and file-backed: dropped ones come back from the file when a row is looked up.
"""

import ctypes
import sys
from pathlib import Path

_MADV_DONTNEED = 4


def release_mapped_pages(directory: Path) -> None:
    """Drops the resident pages of every read-only mapping of a file under `directory`; on Linux, else nothing."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    prefix = f"{directory.resolve()}/"
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) < 6 or not fields[5].startswith(prefix) or "w" in fields[1]:
            continue
        start, end = (int(edge, 16) for edge in fields[0].split("-"))
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED)
