"""Compiling the shared library: the header's declarations, cffi's embedding code, one call of a C compiler.

Owns what is compiled and linked. What an entry does when C calls it is in `glue`.
"""

import re
import shutil
import site
import subprocess
import sys
import sysconfig
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from specruntime.abi.header import header
from specruntime.errors import BackendMissing, InvalidArgument

MODULE = "_specruntime_c"
_SUFFIX = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
LIBRARY = f"libspecruntime{_SUFFIX}"
# Runs once, at the first call: finds the packages that the library was built with, then takes over every entry.
_START = """
import site, sys
for place in {places!r}:
    site.addsitedir(place)
from {module} import ffi, lib
from specruntime.clib.glue import take_over
take_over(ffi)
"""


def header_path() -> Path:
    """Return the C header: next to the package in a wheel, next to the sources in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for place in (package / "include", package.parent / "include"):
        if (place / "specruntime.h").is_file():
            return place / "specruntime.h"
    raise InvalidArgument("specruntime.h is not in this installation; install specruntime again")


def build_library(into: Path, compiler: str = "cc") -> Path:
    """Write the library and its header to the directory `into`; the library's path.

    Raises `BackendMissing` without cffi, a compiler or a shared libpython, `InvalidArgument` with the compiler's
    words when it refuses.
    """
    into.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(header_path(), into / "specruntime.h")
    source = into / f"{MODULE}.c"
    with redirect_stdout(StringIO()):  # cffi tells the terminal what it writes
        _embedding().emit_c_code(str(source))
    library = into / LIBRARY
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(source), *_flags(into)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise BackendMissing(
            f"C compiler {compiler!r} not found: install one, or name it with --cc"
        ) from error
    if done.returncode != 0:
        raise InvalidArgument(f"{compiler} refuses {source}: {done.stderr.strip()[-500:]}")
    source.unlink()
    return library


def _embedding() -> Any:
    try:
        from cffi import FFI
    except ImportError as error:
        raise BackendMissing(
            "the C library is built with cffi, which is not installed: pip install 'specruntime[clib]'"
        ) from error
    ffi = FFI()
    ffi.embedding_api(declarations())
    ffi.set_source(MODULE, '#include "specruntime.h"')
    ffi.embedding_init_code(_START.format(places=_places(), module=MODULE))
    return ffi


def declarations() -> str:
    """Return the header as cffi reads it: without the preprocessor's lines."""
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", header(), flags=re.DOTALL)
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def _places() -> list[str]:
    """Directories of installed packages, this one's first where it is a checkout."""
    package = Path(__file__).resolve().parents[2]
    return list(dict.fromkeys([str(package), *site.getsitepackages(), sysconfig.get_path("purelib")]))


def _flags(into: Path) -> list[str]:
    """Compiler options: Python's headers and its shared library, found again at run time."""
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        raise BackendMissing(
            f"the Python at {sys.executable} has no shared library to embed: build it with --enable-shared, or use the "
            "python3 of the system with its libpython3-dev"
        )
    place = sysconfig.get_config_var("LIBDIR")
    include = sysconfig.get_path("include")
    name = f"python{sysconfig.get_config_var('LDVERSION')}"
    return [f"-I{include}", f"-I{into}", f"-L{place}", f"-Wl,-rpath,{place}", f"-l{name}"]
