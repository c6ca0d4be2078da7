"""Starts the server and ends it: SIGTERM cuts off only what takes too long."""

import socket
import sys
from contextlib import suppress
from logging import INFO
from types import FrameType

import uvicorn

from specruntime.bundle import LoadedBundle
from specruntime.errors import InvalidArgument
from specruntime.server.app import create_app
from specruntime.server.connections import server_config
from specruntime.server.logs import log, log_to
from specruntime.server.settings import Settings
from specruntime.serving import PrefixCaching, Scheduler, stepper_for


def serve(
    bundle: LoadedBundle,
    settings: Settings,
    *,
    host: str,
    port: int,
    slots: int,
    workers: int = 1,
    speculate_up_to: int | None = None,
    prefix_caching: PrefixCaching = "exact",
    queue_limit: int,
    drain_seconds: float,
) -> None:
    """Serve until SIGTERM or SIGINT, then lets the answers in progress end, `drain_seconds` at most.

    Raises `InvalidArgument` when the address cannot be listened on, `OutOfMemory` when the slots do not fit.
    """
    listener = _listen(host, port)
    log_to(sys.stderr)
    stepper = stepper_for(
        bundle, slots, workers=workers, speculate_up_to=speculate_up_to, prefix_caching=prefix_caching
    )
    with Scheduler(stepper, queue_limit=queue_limit) as scheduler:
        app = create_app(scheduler, bundle.tokenizer, bundle.manifest.target.capacity, settings)
        config = server_config(app, settings, drain_seconds)
        address = "http://{}:{}".format(*listener.getsockname()[:2])
        log("serving", INFO, model=settings.model_name, address=address, slots=slots, queue=queue_limit)
        _Draining(config, scheduler).run(sockets=[listener])
    log("stopped", INFO, **dict(scheduler.totals.ended))


class _Draining(uvicorn.Server):
    """Passes a signal on to the scheduler: queued and running requests go on, no new one is accepted.

    A second signal ends the rest at once. Neither is raised again afterwards, as uvicorn's own would be: an ordered
    end is a success.
    """

    def __init__(self, config: uvicorn.Config, scheduler: Scheduler) -> None:
        super().__init__(config)
        self._scheduler = scheduler

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._scheduler.stop_accepting()
        self.force_exit = self.should_exit
        self.should_exit = True
        # Last: where the signal came while a line was written, the log's stream takes no other and raises.
        with suppress(RuntimeError):
            log("draining", INFO, signal=sig, **_counts(self._scheduler))


def _counts(scheduler: Scheduler) -> dict[str, int]:
    now = scheduler.occupancy()
    return {"active": now.active, "queued": now.queued}


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        raise InvalidArgument(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --host or --port"
        ) from error
    return listener
