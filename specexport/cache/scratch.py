"""Directories that a process works in before it renames them into place, named so that abandoned ones can be
recognised.
"""

import os
import platform
import shutil
import time
from hashlib import sha256
from pathlib import Path

_PREFIX = ".partial-"
_STALE_SECONDS = (
    24 * 3600
)  # where the process cannot be asked: another machine's, or a name of an older version


def new_scratch(directory: Path) -> Path:
    """Return an empty directory of this process in `directory`."""
    for number in range(1 << 16):
        scratch = directory / f"{_PREFIX}{_machine()}-{os.getpid()}-{number}"
        try:
            scratch.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return scratch
    raise FileExistsError(f"{directory} is full of unfinished entries")


def remove_dead_scratches(directory: Path) -> None:
    """Delete what killed processes left in `directory`; it need not exist."""
    for scratch in directory.glob(f"{_PREFIX}*"):
        if _is_dead(scratch):
            remove_tree(scratch)


def is_running(pid: int) -> bool:
    """Whether a process of this machine has that id."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it runs as another user
        return True
    return True


def remove_tree(path: Path) -> None:
    """Delete a directory, a file or a link itself, as far as the disk allows."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def _is_dead(scratch: Path) -> bool:
    machine, _, rest = scratch.name.removeprefix(_PREFIX).partition("-")
    pid = rest.partition("-")[0]
    if machine == _machine() and pid.isdigit() and not is_running(int(pid)):
        return True
    try:
        return scratch.lstat().st_mtime < time.time() - _STALE_SECONDS
    except OSError:  # its owner was faster
        return False


def _machine() -> str:
    """Process ids mean nothing on another machine that shares the directory."""
    return sha256(platform.node().encode()).hexdigest()[:8]
