"""The flat API as a shared library for C: `python -m specruntime.clib -o DIR` writes it there with its header.

The library embeds this Python and its installed packages; a C program links it and includes `specruntime.h`.
Building it needs the extra `clib` (cffi), a C compiler, and a Python with a shared library.
"""

from specruntime.clib.compile import build_library, header_path

__all__ = ["build_library", "header_path"]
