"""What Triton's Python backend offers a model, for a host without Triton: tensors, responses, senders.

Refuses what Triton refuses: a response after the final one, outputs and types that the configuration does not have.
"""

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
_TYPES = {"TYPE_STRING": np.object_, "TYPE_INT64": np.int64, "TYPE_FP32": np.float32, "TYPE_BOOL": np.bool_}


@dataclass
class Tensor:
    tensor_name: str
    array: NDArray[Any]

    def as_numpy(self) -> NDArray[Any]:
        return self.array


@dataclass
class TritonError:
    text: str


@dataclass
class InferenceResponse:
    output_tensors: list[Tensor]
    error: TritonError | None = None


@dataclass
class Sender:
    """Collects the responses of one request."""

    outputs: dict[str, str]  # name -> type, as config.pbtxt has them
    responses: list[InferenceResponse] = field(default_factory=list)
    final: threading.Event = field(default_factory=threading.Event)

    def send(self, response: InferenceResponse, flags: int = 0) -> None:
        assert not self.final.is_set(), "a response after the final one"
        for tensor in response.output_tensors:
            assert tensor.array.dtype == _TYPES[self.outputs[tensor.tensor_name]], tensor
        self.responses.append(response)
        if flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL:
            self.final.set()


class Request:
    """Inputs by name, each as an array of the type that config.pbtxt has for it."""

    def __init__(self, inputs: dict[str, str], outputs: dict[str, str], **values: Any) -> None:
        self.sender = Sender(outputs)
        self.cancelled = False
        self._tensors = {
            name: Tensor(
                name, np.asarray(value if isinstance(value, list) else [value], _TYPES[inputs[name]])
            )
            for name, value in values.items()
        }

    def get_response_sender(self) -> Sender:
        return self.sender

    def is_cancelled(self) -> bool:
        return self.cancelled

    def tensor(self, name: str) -> Tensor | None:
        return self._tensors.get(name)


def get_input_tensor_by_name(request: Request, name: str) -> Tensor | None:
    return request.tensor(name)
