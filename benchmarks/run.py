"""All systems answer all prompts in turns, so that a slow minute hits all alike; medians and spread, outputs compared.

    python benchmarks/run.py [--repeat 3] [--only specruntime,transformers] [--output docs/figures/peers]

Writes OUTPUT.json, OUTPUT.md and OUTPUT.png. A system that is not measured is named with the reason.
"""

import argparse
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from time import sleep
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from prepare import HERE, RECIPES, NotPrepared, environment, model
from systems import SYSTEMS, System, label
from tables import draw, render

from specexport.bench.machine import describe_machine
from specexport.bench.prompts import encode_prompts, load_prompts
from specruntime import open_bundle
from specruntime.engines.cores import usable_cores

# OpenMP threads spin for a while after the last operator, on cores that the next system needs.
_SETTLE_SECONDS = 0.3
_WARM_TOKENS = 8


class Worker:
    """One system in one mode, in a process of its own that waits while the others work."""

    def __init__(self, system: System, mode: str, threads: int, ends: list[int]) -> None:
        """Raises `NotPrepared`."""
        self.system, self.mode, self.label = system, mode, label(system, mode)
        script = HERE / "workers" / system.worker
        options = ["--model", str(model(system.model)), "--mode", mode]
        limits = ["--threads", str(threads), "--ends", json.dumps(ends)]
        self._process = subprocess.Popen(
            [str(environment(system.environment)), str(script), *options, *limits],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.versions: dict[str, str] = self._read()["versions"]

    def ask(self, ids: list[int], most: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"ids": ids, "max_new_tokens": most}) + "\n")
        self._process.stdin.flush()
        found = self._read()
        sleep(_SETTLE_SECONDS)
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None and self._process.stderr is not None
        line = self._process.stdout.readline()
        if not line:
            said = self._process.stderr.read().strip().splitlines() or ["nothing was said"]
            raise NotPrepared(f"{self.label} ended: {said[-1]}")
        found: dict[str, Any] = json.loads(line)
        return found


def prepare_all(only: set[str]) -> None:
    """Makes what the systems need and says what cannot be made."""
    for system in SYSTEMS:
        if only and system.name not in only:
            continue
        try:
            print(
                f"{system.name} {system.precision}: {environment(system.environment)}, {model(system.model)}"
            )
        except NotPrepared as reason:
            print(f"{system.name} {system.precision}: {reason}")


def start(
    only: set[str], threads: int, ends: list[int], longest: list[int]
) -> tuple[list[Worker], dict[str, str]]:
    """The workers that came up, warmed, and the reasons of the others."""
    workers: list[Worker] = []
    missing: dict[str, str] = {}
    for system in SYSTEMS:
        if only and system.name not in only:
            continue
        for mode in system.modes:
            try:
                print(f"preparing {label(system, mode)}", file=sys.stderr)
                worker = Worker(system, mode, threads, ends)
                if error := worker.ask(longest, _WARM_TOKENS).get("error"):
                    worker.close()
                    raise NotPrepared(error)
                workers.append(worker)
            except NotPrepared as reason:
                missing[label(system, mode)] = str(reason)
    return workers, missing


def measure(
    workers: list[Worker], prompts: dict[str, list[int]], most: int, repeat: int
) -> list[dict[str, Any]]:
    """One record per answer."""
    records = []
    for number in range(repeat):
        for prompt, ids in prompts.items():
            for worker in workers:
                print(f"{number + 1} of {repeat}, {prompt}, {worker.label}", file=sys.stderr)
                found = worker.ask(ids, most)
                records.append({"system": worker.label, "prompt": prompt, "repeat": number, **found})
    return records


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--prompts", type=Path, default=RECIPES / "prompts" / "bench.jsonl")
    parser.add_argument(
        "--prepare", action="store_true", help="make environments and models, measure nothing"
    )
    parser.add_argument("--only", default="", help="names of systems, separated by commas")
    parser.add_argument("--output", type=Path, default=HERE.parent / "docs" / "figures" / "peers")
    options = parser.parse_args()
    if options.prepare:
        prepare_all({name for name in options.only.split(",") if name})
        return
    loaded = load_prompts(options.prompts)
    with open_bundle(model("bundle-fp32"), verify=False) as bundle:
        encoded = encode_prompts(bundle, loaded, options.max_new_tokens)
        ends = list(bundle.manifest.eos_token_ids)
    only = {name for name in options.only.split(",") if name}
    workers, missing = start(only, options.threads, ends, max(encoded.values(), key=len))
    try:
        records = measure(workers, encoded, options.max_new_tokens, options.repeat)
    finally:
        for worker in workers:
            worker.close()
    report = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": describe_machine(options.threads),
        "settings": {"max_new_tokens": options.max_new_tokens, "repeat": options.repeat},
        "versions": {worker.label: worker.versions for worker in workers},
        "categories": {prompt.id: prompt.category for prompt in loaded},
        "records": records,
        "missing": missing,
    }
    options.output.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    options.output.with_suffix(".md").write_text(render(report))
    draw(report, options.output.with_suffix(".png"))
    print(render(report))


if __name__ == "__main__":
    main()
