"""A Triton model over one bundle: Python backend, decoupled, one response a round.

Written by `specexport deploy triton`. Inputs and outputs are named in config.pbtxt next to this directory; requests are
scheduled over slots, in batches where the bundle was built with `batch`, and every response is sent from the
scheduler's thread. A thread of its own asks Triton which requests were cancelled: those that wait or are fed deliver
nothing at which it could be noticed.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from threading import Event as Signal
from threading import Thread
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from specruntime.bundle import open_bundle
from specruntime.engines import EngineOptions
from specruntime.errors import InvalidArgument
from specruntime.sampling.params import SamplingParams
from specruntime.serving import Cancelled, Delivery, Event, Scheduler, Ticket, Work, stepper_for

_OPTIONS = {
    "max_tokens": int, "temperature": float, "top_p": float, "top_k": int, "seed": int, "ignore_eos": bool,
}  # fmt: skip
_WATCH_SECONDS = 0.05  # Triton answers `is_cancelled` by a message between processes: too slow for every step


@dataclass(frozen=True, slots=True)
class _Open:
    """A request that has not had its last response."""

    request: Any
    ticket: Ticket
    ended: Signal


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"]).get("parameters", {})
        said = {name: entry["string_value"] for name, entry in parameters.items()}
        threads = int(said.get("threads", 0)) or None
        place = Path(args["model_repository"]) / args["model_version"] / "bundle"
        self._bundle = open_bundle(place, options=EngineOptions(threads=threads), text=True)
        stepper = stepper_for(
            self._bundle, int(said["slots"]), prefix_caching=said.get("prefix_caching", "exact")
        )
        self._scheduler = Scheduler(stepper, queue_limit=int(said["queue"]))
        self._codec = self._bundle.tokenizer
        self._open: list[_Open] = []
        self._finalized = Signal()
        self._watcher = Thread(target=self._watch, name="specruntime-cancellation", daemon=True)
        self._watcher.start()

    def execute(self, requests: list[Any]) -> None:
        """Submit each request; a decoupled model answers through the senders and return nothing."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._submit(request, sender)
            except Exception as error:  # of this request alone
                _fail(sender, error)

    def finalize(self) -> None:
        self._finalized.set()
        self._watcher.join()
        self._scheduler.close()
        self._bundle.close()

    def _submit(self, request: Any, sender: Any) -> None:
        stream = bool(_value(request, "stream", default=True))
        sent: list[Delivery] = []
        ended = Signal()

        def deliver(event: Event) -> None:
            if event.last:
                ended.set()
            if not isinstance(event, Delivery):
                _fail(sender, event.error)
                return
            if request.is_cancelled() and not event.last:
                raise Cancelled("the request was cancelled by its client")  # its last event is the failure
            sent.append(event)
            if stream or event.last:
                _send(sender, sent, last=event.last)
                sent.clear()

        ticket = self._scheduler.submit(self._work(request), deliver)
        self._open.append(_Open(request, ticket, ended))

    def _watch(self) -> None:
        while not self._finalized.wait(_WATCH_SECONDS):
            for opened in list(self._open):
                if opened.ended.is_set():
                    self._open.remove(opened)
                elif opened.request.is_cancelled():
                    opened.ticket.cancel()

    def _work(self, request: Any) -> Work:
        ids = pb_utils.get_input_tensor_by_name(request, "prompt_ids")
        text = _value(request, "prompt", default=None)
        if (ids is None) == (text is None):
            found = "neither" if ids is None else "both"
            raise InvalidArgument(f"found {found} of `prompt` and `prompt_ids`, expected one of them")
        if ids is not None:
            prompt = ids.as_numpy().reshape(-1).astype(np.int64)
        elif self._codec is not None:
            prompt = np.asarray(self._codec.encode(text.decode("utf-8")))
        else:
            raise InvalidArgument("this bundle has no tokenizer: send `prompt_ids`")
        given = {
            name: kind(value)
            for name, kind in _OPTIONS.items()
            if (value := _value(request, name, default=None)) is not None
        }
        stop = pb_utils.get_input_tensor_by_name(request, "stop")
        stops = () if stop is None else tuple(text.decode("utf-8") for text in stop.as_numpy().reshape(-1))
        return Work(prompt, SamplingParams(stop=stops, **given))


def _value(request: Any, name: str, *, default: Any) -> Any:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy().reshape(-1)[0]


def _send(sender: Any, deliveries: list[Delivery], *, last: bool) -> None:
    text = "".join(delivery.delta.text for delivery in deliveries)
    ids = [token for delivery in deliveries for token in delivery.delta.tokens]
    reason = deliveries[-1].delta.finish_reason or ""
    tensors = [
        pb_utils.Tensor("text", np.array([text.encode()], dtype=np.object_)),
        pb_utils.Tensor("token_ids", np.array(ids, dtype=np.int64)),
        pb_utils.Tensor("finish_reason", np.array([reason.encode()], dtype=np.object_)),
        pb_utils.Tensor("seed", np.array([deliveries[-1].figures.seed or 0], dtype=np.int64)),
    ]
    flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0
    sender.send(pb_utils.InferenceResponse(output_tensors=tensors), flags=flags)


def _fail(sender: Any, error: Exception) -> None:
    response = pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(str(error)))
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
