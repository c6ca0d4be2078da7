"""Measurements in a process of their own, which holds and has loaded nothing but what a production host would."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from specruntime.errors import EngineFailed


def run_probe(module: str, bundle: Path, threads: int | None) -> dict[str, Any]:
    """The JSON object that `python -m MODULE BUNDLE [THREADS]` prints. Raises `EngineFailed`."""
    command = [sys.executable, "-m", module, str(bundle), *([str(threads)] if threads is not None else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise EngineFailed(f"{module} ended with {done.returncode}: {reason}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
