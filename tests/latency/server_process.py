"""`specruntime serve` in a process of its own, as production runs it."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ServerProcess:
    port: int
    pid: int

    def resident_mb(self) -> float:
        fields = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in fields if line.startswith("VmRSS:")) * 1024 / 1e6


@contextmanager
def serving(bundle: Path, *options: str) -> Iterator[ServerProcess]:
    command = [
        str(Path(sys.executable).with_name("specruntime")),
        "serve",
        str(bundle),
        "--port",
        "0",
        *options,
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        started = json.loads(process.stderr.readline())
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield ServerProcess(int(started["address"].rsplit(":", 1)[1]), process.pid)
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
