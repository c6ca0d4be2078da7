"""`python -m specexport.bench.memory_probe BUNDLE [THREADS]`: what a process that only decodes holds in memory.

Runs in its own process and imports the runtime alone. Prints one JSON object. Linux only: other systems have no
/proc/self/smaps_rollup.
"""

import json
import sys
from pathlib import Path

_PROMPT, _ANSWER = 200, 32
_PARTS = ("Private_Clean", "Private_Dirty", "Shared_Clean", "Shared_Dirty")


def resident_bytes() -> int:
    """Private and shared mapped pages of this process."""
    fields = dict(line.split(":", 1) for line in _lines("smaps_rollup") if ":" in line)
    return sum(int(fields[part].split()[0]) for part in _PARTS) * 1024


def peak_bytes() -> int:
    """Most that was ever resident since this program began (a forked process inherits its parent's `ru_maxrss`)."""
    (peak,) = (line for line in _lines("status") if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024


def _lines(name: str) -> list[str]:
    return Path("/proc/self", name).read_text().splitlines()


def probe(bundle: Path, threads: int | None) -> dict[str, int]:
    """Bytes above a bare `import onnxruntime`: one session that answered ids, what text adds, and the peak."""
    import onnxruntime  # noqa: F401  # the baseline

    before = resident_bytes()
    from specruntime import EngineOptions, SamplingParams, complete, open_bundle
    from specruntime.check import prompt_ids

    with open_bundle(bundle, options=EngineOptions(threads=threads)) as opened:
        session = opened.new_session()
        ids = [index % opened.manifest.target.vocab_size for index in range(1, _PROMPT + 1)]
        complete(session, ids[: session.capacity // 2], SamplingParams(max_tokens=_ANSWER))
        decoding = resident_bytes() - before
        session.reset()
        complete(
            session, prompt_ids(opened, opened.manifest.check.prompts[0]), SamplingParams(max_tokens=_ANSWER)
        )
        return {"session": decoding, "text": resident_bytes() - before - decoding, "peak": peak_bytes()}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(probe(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)))
