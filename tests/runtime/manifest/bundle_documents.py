"""The manifest of a sound bundle as a document that tests change, the bundle on disk, and how it is refused."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from specruntime.bundle import load_manifest
from specruntime.errors import BundleInvalid
from specruntime.manifest.schema import SCHEMA_VERSION

Document = dict[str, Any]
FILES = {"target.onnx": b"target graph", "weights/target.data": b"\0" * 4096, "draft.onnx": b"draft graph"}


def graph(file: str, capacity: int) -> Document:
    cache = {"dtype": "float32", "shape": ["B", 2, capacity, 8]}
    kinds = ("key.0", "value.0", "key.1", "value.1")
    return {
        "file": file,
        "inputs": [
            {"name": "input_ids", "dtype": "int64", "shape": ["B", "W"]},
            {"name": "cache_length", "dtype": "int64", "shape": ["B"]},
            *({"name": f"past_{kind}", **cache} for kind in kinds),
        ],
        "outputs": [
            {"name": "top_ids", "dtype": "int64", "shape": ["B", "R"]},
            {"name": "logits", "dtype": "float32", "shape": ["B", "R", 128]},
            *({"name": f"present_{kind}", **cache} for kind in kinds),
        ],
        "aliases": [{"input": f"past_{kind}", "output": f"present_{kind}"} for kind in kinds],
        "profiles": [
            {"name": "step", "width": 1, "rows": 1},
            {"name": "verify_4", "width": 4, "rows": 4},
            {"name": "prefill", "width": 16, "rows": 1},
        ],
        "batch": 1,
        "capacity": capacity,
        "layers": 2,
        "vocab_size": 100,
        "padded_vocab_size": 128,
        "engine": {"kind": "onnxruntime", "provider": "cpu", "minimum_version": "1.32.0"},
    }


def sound_document() -> Document:
    return {
        "schema_version": SCHEMA_VERSION,
        "name": "sound",
        "producer": "tests",
        "precision": "fp32",
        "target": graph("target.onnx", 64),
        "draft": {"kind": "model", "k": 3, "graph": graph("draft.onnx", 64)},
        "eos_token_ids": [2],
        "check": {"prompts": [{"id": "ids", "ids": [1, 2, 3]}], "max_new_tokens": 4},
        "files": {
            name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
            for name, data in FILES.items()
        },
    }


def write_bundle(root: Path, document: object) -> Path:
    for name, data in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    (root / "manifest.json").write_text(json.dumps(document))
    return root


def refusal(root: Path, error: type[BundleInvalid] = BundleInvalid, verify: bool = True) -> str:
    """The message of the refusal, which must be of exactly this class."""
    with pytest.raises(error) as caught:
        load_manifest(root, verify=verify)
    assert caught.type is error
    message = str(caught.value)
    assert "\n" not in message, "a refusal is one line"
    return message
