"""A Ray Serve application over one bundle: every replica is the OpenAI-compatible server of specruntime.

Written by `specexport deploy ray`; run it with `serve run serve.yaml` in this directory. The environment of the
replicas sets SPECRUNTIME_BUNDLE, SPECRUNTIME_SLOTS, SPECRUNTIME_QUEUE, SPECRUNTIME_THREADS and
SPECRUNTIME_PREFIX_CACHING (serve.yaml does). A bundle that was built with `batch` answers its slots in batches.
"""

import os
from pathlib import Path
from typing import Any

from ray import serve

from specruntime.bundle import open_bundle
from specruntime.engines import EngineOptions
from specruntime.server.app import create_app
from specruntime.server.settings import Settings
from specruntime.serving import Scheduler, stepper_for


class Replica:
    """One process: its own weights, slots and queue."""

    def __init__(self) -> None:
        threads = int(os.environ.get("SPECRUNTIME_THREADS", "0"))
        bundle = os.environ.get("SPECRUNTIME_BUNDLE") or Path(__file__).resolve().with_name("bundle")
        self.bundle = open_bundle(bundle, options=EngineOptions(threads=threads or None), text=True)
        stepper = stepper_for(
            self.bundle,
            int(os.environ.get("SPECRUNTIME_SLOTS", "4")),
            prefix_caching=os.environ.get("SPECRUNTIME_PREFIX_CACHING", "exact"),  # type: ignore[arg-type]  # checked there
        )
        queue = int(os.environ.get("SPECRUNTIME_QUEUE", "64"))
        self.scheduler = Scheduler(stepper, queue_limit=queue)
        manifest = self.bundle.manifest
        name = os.environ.get("SPECRUNTIME_MODEL_NAME") or manifest.name
        settings = Settings(name)
        self.app = create_app(self.scheduler, self.bundle.tokenizer, manifest.target.capacity, settings)


def build_app() -> Any:
    """Return the ASGI application of this process; Ray Serve calls it once in each replica."""
    replica = Replica()
    replica.app.state.replica = replica
    return replica.app


@serve.deployment
@serve.ingress(build_app)
class Server:
    """What Ray Serve counts, scales and restarts."""


application = Server.bind()  # type: ignore[attr-defined]  # what the decorator makes has it
