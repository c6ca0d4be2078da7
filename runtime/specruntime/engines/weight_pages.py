"""Giving back the pages of weight files that were read only to be repacked.

ONNX Runtime maps a bundle's weight file and copies most tensors into its own packed layout. A tensor that is also read
unpacked (a tied embedding) stays mapped as a whole, so a full extra copy of it counts as resident. The pages are clean
and file-backed: dropped ones come back from the file when a row is looked up. Packed weights saved at the end of the
file are what the kernels read: their pages stay.
"""

import ctypes
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MADV_DONTNEED = 4
_SMAPS = Path("/proc/self/smaps")


@dataclass(frozen=True)
class Mapping:
    """One mapped range of a file; `modified` when it holds pages that differ from the file."""

    start: int
    end: int
    offset: int
    path: str
    modified: bool

    def begins_in_last(self, count: int) -> bool:
        """Whether it begins in the last `count` bytes of its file; not where the file is gone."""
        try:
            return count > 0 and self.offset >= Path(self.path).stat().st_size - count
        except OSError:
            return False


def release_mapped_pages(directory: Path, packed: int = 0) -> None:
    """Drops the resident pages of every unmodified mapping of a file under `directory`; on Linux, else nothing.

    Pages of mappings that begin in the last `packed` bytes of a file stay.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    prefix = f"{directory.resolve()}/"
    for mapping in list(file_mappings()):
        if mapping.path.startswith(prefix) and not mapping.modified and not mapping.begins_in_last(packed):
            size = ctypes.c_size_t(mapping.end - mapping.start)
            libc.madvise(ctypes.c_void_p(mapping.start), size, _MADV_DONTNEED)


def file_mappings() -> Iterator[Mapping]:
    """The files mapped into this process. A mapping with anonymous pages has been written to (copy on write)."""
    found: list[str] = []
    for line in _SMAPS.read_text().splitlines():
        fields = line.split(maxsplit=5)
        if not fields[0].endswith(":"):
            found = fields
        elif fields[0] == "Anonymous:" and len(found) == 6:
            start, end = (int(edge, 16) for edge in found[0].split("-"))
            yield Mapping(start, end, int(found[2], 16), found[5], modified=int(fields[1]) > 0)
