"""The draft of a bundle reads from the target's file what both have byte for byte, and nothing else."""

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import load_external_data_for_model

from specexport.graph.files import GRAPH_NAME, WEIGHTS_NAME
from specexport.graph.shared_weights import SHARED_GRAPH_NAME, share_weights

Weights = dict[str, NDArray[np.float32]]
RNG = np.random.default_rng(0)
TABLE = RNG.standard_normal((64, 64)).astype(np.float32)


def write(root: Path, weights: Weights) -> None:
    root.mkdir()
    graph = helper.make_graph(
        [helper.make_node("Identity", [next(iter(weights))], ["out"])],
        "g",
        [],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    onnx.save(
        helper.make_model(graph),
        root / GRAPH_NAME,
        save_as_external_data=True,
        location=WEIGHTS_NAME,
        size_threshold=0,
    )


def read(root: Path, place: str) -> Weights:
    model = onnx.load(root / place, load_external_data=False)
    load_external_data_for_model(model, str((root / place).parent))
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_a_draft_shares_what_is_equal_to_the_last_byte(tmp_path: Path) -> None:
    near, small = TABLE.copy(), RNG.standard_normal(8).astype(np.float32)
    near[-1, -1] += 1  # behind the first page
    target = {"table": TABLE, "other": RNG.standard_normal((64, 64)).astype(np.float32), "small": small}
    draft = {"near": near, "same": TABLE, "own": RNG.standard_normal((64, 64)).astype(np.float32), "s": small}
    write(tmp_path / "target", target)
    write(tmp_path / "draft", draft)
    files = share_weights(tmp_path)
    assert files == (f"draft/{WEIGHTS_NAME}", f"target/{WEIGHTS_NAME}")
    found = read(tmp_path, SHARED_GRAPH_NAME)
    assert {name: value.tolist() for name, value in found.items()} == {
        name: value.tolist() for name, value in draft.items()
    }
    graph = onnx.load(tmp_path / SHARED_GRAPH_NAME, load_external_data=False)
    homes = {
        tensor.name: next(entry.value for entry in tensor.external_data if entry.key == "location")
        for tensor in graph.graph.initializer
    }
    assert [name for name, home in homes.items() if home == files[1]] == ["same"]
    assert (tmp_path / files[0]).stat().st_size < 3 * TABLE.nbytes, "it is in one file only"


def test_a_draft_with_nothing_in_common_stays_as_it_is(tmp_path: Path) -> None:
    near = TABLE.copy()
    near[-1, -1] += 1
    write(tmp_path / "target", {"table": TABLE})
    write(tmp_path / "draft", {"near": near})
    assert share_weights(tmp_path) == ()
    assert sorted(path.name for path in (tmp_path / "draft").iterdir()) == [GRAPH_NAME, WEIGHTS_NAME]
