"""`python -m specexport.bench.sharing_probe BUNDLE [THREADS]`: two processes on one bundle, and what each adds.

Both have answered a check prompt and hold the bundle open. Prints one JSON list, an object for each, megabytes of 10^6
bytes: `private`, pages that no other process has, and `proportional`, where a shared page counts by its sharers. Linux.
"""

import json
import sys
from pathlib import Path
from subprocess import PIPE, Popen

_CHILDREN = 2
_MODULE = "specexport.bench.sharing_probe"


def probe(bundle: Path, threads: int | None) -> list[dict[str, float]]:
    """Return the measurements of each process. Raises `RuntimeError` where one of them ended early."""
    command = [sys.executable, "-m", _MODULE, "--hold", str(bundle)]
    command += [] if threads is None else [str(threads)]
    children = [Popen(command, stdin=PIPE, stdout=PIPE, text=True) for _ in range(_CHILDREN)]
    try:
        for child in children:
            if _line(child) != "ready":
                raise RuntimeError(f"a process that opens {bundle} ended: its message is above")
        return [_told(child.pid) for child in children]
    finally:
        for child in children:
            child.communicate()  # its input ends, so it does


def _line(child: "Popen[str]") -> str:
    assert child.stdout is not None, "asked for"
    return child.stdout.readline().strip()


def _told(process: int) -> dict[str, float]:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    sizes = {
        name: int(fields[name].split()[0]) * 1024 / 1e6 for name in ("Pss", "Private_Clean", "Private_Dirty")
    }
    return {"private": sizes["Private_Clean"] + sizes["Private_Dirty"], "proportional": sizes["Pss"]}


def hold(bundle: Path, threads: int | None) -> None:
    """Answer, say `ready`, and keep the bundle open until its input ends."""
    from specruntime import EngineOptions, SamplingParams, complete, open_bundle
    from specruntime.check import prompt_ids

    with open_bundle(bundle, options=EngineOptions(threads=threads)) as opened:
        session = opened.new_session()
        complete(session, prompt_ids(opened, opened.manifest.check.prompts[0]), SamplingParams(max_tokens=16))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    held, arguments = sys.argv[1] == "--hold", [each for each in sys.argv[1:] if each != "--hold"]
    place, count = Path(arguments[0]), int(arguments[1]) if len(arguments) > 1 else None
    if held:
        hold(place, count)
    else:
        sys.stdout.write(json.dumps(probe(place, count)))
