"""The path of a draft through some layers is run without the others, from a file of its own, on the same weights."""

from pathlib import Path
from shutil import copytree

import onnx_ir as ir

from specexport.backends import backend_of
from specexport.graph.canonical import CanonicalGraph, save_reference, take_reference
from specexport.graph.compiled import compile_graph
from specexport.graph.files import GRAPH_NAME, PATH_NAME, WEIGHTS_NAME, GraphFacts, target_profiles
from specexport.graph.plan import GraphPlan
from specexport.recipe.schema import OnnxRuntimeBackend
from tests.specexport.export.comparison import CAPACITY, VOCAB_SIZE
from tests.specexport.export.exported import CANONICAL, exports_under


def test_each_path_is_a_file_of_its_own_on_one_weights_file(
    cache: Path, run_directory: Path, tmp_path: Path
) -> None:
    """ONNX Runtime runs every node of a file, whatever is asked of it."""
    found = exports_under(run_directory)["llama"]
    directory = copytree(found.directory / CANONICAL, tmp_path / "llama")
    save_reference(take_reference(found.model, vocab_size=VOCAB_SIZE, tokens=8), directory)
    facts = GraphFacts(CAPACITY, 2, VOCAB_SIZE, found.padded_vocab_size)
    canonical = CanonicalGraph("llama", directory, "tiny llama", facts, None, (), None, hidden_size=64)
    backend = OnnxRuntimeBackend(kind="onnxruntime", provider="cpu", threads=1)
    graph = compile_graph(
        canonical,
        backend_of(backend),
        profiles=target_profiles([4], 16),
        batch=1,
        plan=GraphPlan(draft_layers=(1,)),
    )
    assert graph.files == (GRAPH_NAME, WEIGHTS_NAME, PATH_NAME)
    files = {name: ir.load(graph.directory / name).graph for name in (GRAPH_NAME, PATH_NAME)}
    for profile in graph.spec.profiles:
        path = files[profile.file or GRAPH_NAME]
        assert {value.name for value in path.outputs} == set(profile.outputs or ())
    attentions = {n: sum(node.op_type == "GroupQueryAttention" for node in g) for n, g in files.items()}
    assert attentions == {GRAPH_NAME: 2, PATH_NAME: 1}
    assert {name for path in files.values() for name in _weights_files(path)} == {WEIGHTS_NAME}


def _weights_files(graph: ir.Graph) -> set[str]:
    held = [value.const_value for value in graph.initializers.values()]
    return {Path(tensor.location).name for tensor in held if isinstance(tensor, ir.ExternalTensor)}
