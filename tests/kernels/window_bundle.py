"""A bundle with a graph over the operators next to the plain one: `write_window` adds one to a built bundle."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

Change = Callable[[onnx.ModelProto], None]


def nothing(model: onnx.ModelProto) -> None:
    """Leave the graph as it is."""


def write_window(built: Path, root: Path, change: Change = nothing, **keys: Any) -> Path:
    """Copy the bundle `built` to `root`, with a copy of its graph that `change` was applied to as window.onnx."""
    shutil.copytree(built, root)
    manifest = json.loads((root / "manifest.json").read_text())
    file = Path(manifest["target"]["file"])
    model = onnx.load(root / file)
    change(model)
    names = {
        "file": (file.parent / "window.onnx").as_posix(),
        "weights": (file.parent / "window.weights").as_posix(),
    }
    onnx.save(
        model, root / names["file"], save_as_external_data=True, location="window.weights", size_threshold=64
    )
    manifest["target"]["engine"]["window"] = {
        "file": names["file"],
        "weights": [names["weights"]],
        "operators": 1,
        "layout": 1,
        **keys,
    }
    for name in names.values():
        content = (root / name).read_bytes()
        manifest["files"][name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    (root / "manifest.json").write_text(json.dumps(manifest))
    return root
