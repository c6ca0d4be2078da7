"""Runs in an environment with Ray: two replicas under load, one of them killed. Prints one JSON object.

python drive.py DEPLOYMENT SECONDS
"""

import http.client
import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
import yaml
from ray import serve
from ray.serve.schema import ServeDeploySchema

CLIENTS = 6
REQUESTS = 8  # of each client before a replica is killed, and again afterwards
PORT = 8765


def ask(prompt: list[int], model: str) -> dict[str, Any]:
    """When it began and ended, its status (0: the connection broke), and the answer's text."""
    began = time.monotonic()
    body = {"model": model, "prompt": prompt, "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    status, text = 0, ""
    try:
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=300)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        raw = response.read()
        status = response.status
        text = json.loads(raw)["choices"][0]["text"] if status == 200 else raw.decode(errors="replace")[:200]
        connection.close()
    except (OSError, http.client.HTTPException) as error:
        text = repr(error)
    return {"prompt": prompt, "began": began, "ended": time.monotonic(), "status": status, "text": text}


def replicas() -> list[int]:
    """Process ids of the replicas of this machine's cluster."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if b"ServeReplica" in entry.read_bytes():
                found.append(int(entry.parent.name))
    return sorted(found)


def wait_for_replicas(count: int, beside: int = 0) -> None:
    end = time.monotonic() + 120
    while len([pid for pid in replicas() if pid != beside]) < count:
        if time.monotonic() > end:
            raise SystemExit(f"{count} replicas did not start: {serve.status()}")
        time.sleep(0.2)


def main(deployment: Path) -> None:
    config = yaml.safe_load((deployment / "serve.yaml").read_text())
    ServeDeploySchema.model_validate(config)  # the file is one that Ray takes
    written = config["applications"][0]["deployments"][0]
    sys.path.insert(0, str(deployment))
    environment = written["ray_actor_options"]["runtime_env"]["env_vars"]
    environment["PYTHONPATH"] = str(deployment)
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": environment})
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    import specruntime_app  # type: ignore[import-not-found]

    server = specruntime_app.Server.options(
        num_replicas=2,
        max_ongoing_requests=written["max_ongoing_requests"],
        health_check_period_s=1,
        ray_actor_options={"num_cpus": 0.5},
    )
    serve.run(server.bind(), name="tiny", route_prefix="/")
    wait_for_replicas(2)
    model = config["applications"][0]["name"]
    for _ in range(8):
        assert ask([1, 2, 3], model)["status"] == 200

    asked: list[dict[str, Any]] = []
    gone = threading.Event()

    def client(number: int) -> None:
        turn, left = 0, REQUESTS
        while left:
            left -= gone.is_set()
            asked.append(ask([97 + number, 98, 99, 97 + turn % 20], model))
            turn += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    while len(asked) < REQUESTS * CLIENTS:
        time.sleep(0.05)
    before = replicas()
    killed = [time.monotonic()]
    os.kill(before[0], signal.SIGKILL)
    killed.append(time.monotonic())
    gone.set()
    for thread in threads:
        thread.join()
    wait_for_replicas(2, beside=before[0])
    after = ask([1, 2, 3], model)
    told = {"asked": asked, "killed": killed, "before": before, "after": replicas(), "last": after}
    sys.stdout.write(json.dumps(told) + "\n")
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
