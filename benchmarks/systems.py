"""The systems compared: where each runs, on which model, in which modes. What a reader may dispute is all here."""

from dataclasses import dataclass


@dataclass(frozen=True)
class System:
    """`environment`: the file in environments/ that pins it, "own" for this project's. `model`: a key of `prepare`.

    `precision` is what the arithmetic is called in the table, so that like is compared with like.
    """

    name: str
    precision: str
    environment: str
    worker: str
    model: str
    modes: tuple[str, ...] = ("plain", "lookup")


SYSTEMS = (
    System("specruntime", "fp32", "own", "specruntime_worker.py", "bundle-fp32"),
    System("specruntime", "int8", "own", "specruntime_worker.py", "bundle-int8"),
    System("specruntime", "int8 fast", "own", "specruntime_worker.py", "bundle-int8-fast"),
    System("specruntime", "int4", "own", "specruntime_worker.py", "bundle-int4"),
    System("specruntime", "fp32", "own", "specruntime_worker.py", "bundle-adaptive", ("adaptive",)),
    System("specruntime", "int8", "own", "specruntime_worker.py", "bundle-int8-best", ("adaptive",)),
    System("transformers", "fp32", "transformers", "transformers_worker.py", "checkpoint"),
    System("onnxruntime-genai", "fp32", "onnxruntime-genai", "genai_worker.py", "genai-fp32"),
    System("onnxruntime-genai", "int4", "onnxruntime-genai", "genai_worker.py", "genai-int4"),
    System("OpenVINO GenAI", "fp16 weights", "openvino", "openvino_worker.py", "openvino"),
    System("llama.cpp", "Q4_1", "llama-cpp", "llama_worker.py", "gguf"),
)


def label(system: System, mode: str) -> str:
    """One row of the table."""
    return f"{system.name} {system.precision} {mode}"
