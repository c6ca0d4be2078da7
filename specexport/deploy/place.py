"""Putting a deployment in place, the whole directory or none and never over something else; what one instance takes."""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from specexport.errors import BuildError
from specruntime.bundle import load_manifest
from specruntime.manifest.schema import Manifest
from specruntime.serving import PrefixCaching


def place_deployment(bundle: Path, output: Path, fill: Callable[[Path, Manifest], None]) -> Path:
    """`output`, a new directory that `fill(directory, manifest)` has filled; the bundle is checked first.

    Raises what `load_manifest` raises and `BuildError` when the directory is there or cannot be written.
    """
    manifest = load_manifest(bundle)
    if output.exists():
        raise BuildError(
            f"{output} is there already, expected a new directory; remove it or choose another -o"
        )
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    except OSError as error:
        raise BuildError(
            f"{output} cannot be written: {error.strerror or error}; choose another -o"
        ) from error
    try:
        fill(scratch, manifest)
        scratch.chmod(0o755)
        scratch.rename(output)
    except OSError as error:
        raise BuildError(
            f"{output} cannot be written: {error.strerror or error}; free space there or choose another -o"
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return output


def copy_bundle(bundle: Path, place: Path) -> None:
    """Put the bundle's files at another place; linked where both lie on one file system, since bundles never change."""
    shutil.copytree(bundle, place, copy_function=_link_or_copy)


def _link_or_copy(source: str, target: str) -> str:
    with suppress(OSError):
        os.link(Path(source).resolve(), target)
        return target
    return shutil.copy2(source, target)


@dataclass(frozen=True, kw_only=True)
class InstanceOptions:
    """`slots` answers at the same time, `queue` requests that may wait; `threads` None: all cores."""

    slots: int = 4
    queue: int = 64
    threads: int | None = None
    prefix_caching: PrefixCaching = "exact"
