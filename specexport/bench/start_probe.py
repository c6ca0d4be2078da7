"""`python -m specexport.bench.start_probe BUNDLE [THREADS]`: from a fresh process to its first token.

Runs in its own process and imports the runtime alone. Prints one JSON object, milliseconds by step.
"""

import json
import sys
from itertools import pairwise
from pathlib import Path
from time import perf_counter


def probe(bundle: Path, threads: int | None) -> dict[str, float]:
    """Return a check prompt of the bundle, opened as it is by default: every file's hash is checked."""
    marks = [perf_counter()]
    from specruntime import EngineOptions, SamplingParams, generate, open_bundle
    from specruntime.check import prompt_ids

    marks.append(perf_counter())
    with open_bundle(bundle, options=EngineOptions(threads=threads), text=True) as opened:
        marks.append(perf_counter())
        session = opened.new_session()
        marks.append(perf_counter())
        ids = prompt_ids(opened, opened.manifest.check.prompts[0])
        marks.append(perf_counter())
        next(generate(session, ids, SamplingParams(max_tokens=1), opened.tokenizer))
        marks.append(perf_counter())
    names = ("import", "open", "session", "text", "first")
    return {name: 1e3 * (end - start) for name, (start, end) in zip(names, pairwise(marks), strict=True)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(probe(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)))
