"""The builder's listing and the inspector's JSON give the same layers; the report judges both alike."""

import json

from specexport.tensorrt.engine_report import NetworkFacts, judge
from specexport.tensorrt.layers import parse_inspection, parse_listing

LISTING = (
    "Layers:\n"
    "Name: [ShapeHostToDeviceCopy 0], LayerType: ShapeHostToDevice, Inputs: [], Outputs: [ { Name: n, "
    "Location: Device, Dimensions: [], Datatype: Int64, Format: any }], TacticName: , StreamId: 0, Metadata: \n"
    "Name: __myl_Move_myl1_9, LayerType: kgen, Inputs: [ { Name: past_key.0, Dimensions: [1,2,128,64], "
    "Strides: [16384,8192,64,1], StrideOrder: [3,2,1,0], Datatype: Half, Format: (Linear) Row major linear format }], "
    "Constants: [], Outputs: [ { Name: present_key.0, Dimensions: [1,2,128,64], Strides: [16384,8192,64,1], "
    "Datatype: Half, Format: (Linear) Row major linear format }], TacticName: __myl_Move_0x74, StreamId: 0, "
    "Metadata: [ONNX Layer: node_scatter]\n"
    "Name: _gemm_mha_v2_myl1_13, LayerType: kgen, Inputs: [ { Name: q, Dimensions: [2,-1,64], Datatype: Half, "
    "Format: (Arbitrary) Format with stride order = [1,2,0] }, { Name: k, Dimensions: [2,64,128], Datatype: Half }], "
    "Constants: [ { Name: c, Dimensions: [1], Datatype: Half }], Outputs: [ { Name: o, Dimensions: [2,-1,64], "
    "Datatype: Half }], TacticName: _gemm_mha_v2_0x68, StreamId: 0, Metadata: [ONNX Layer: a.0][ONNX Layer: norm]\n"
    "\nI/O Tensors:\n Name: input_ids, IOMode: Input\n"
)


def test_listing_is_read_whole() -> None:
    copy, move, attention = parse_listing(LISTING)
    assert copy.name == "[ShapeHostToDeviceCopy 0]" and copy.onnx_nodes == ()
    assert (
        move.onnx_nodes == ("node_scatter",) and move.inputs[0].elements == move.outputs[0].elements == 16384
    )
    assert attention.onnx_nodes == ("a.0", "norm")
    assert attention.tactic == "_gemm_mha_v2_0x68"
    assert [tensor.shape for tensor in attention.inputs] == [(2, -1, 64), (2, 64, 128)]
    assert attention.inputs[0].elements is None


def test_inspector_gives_the_same_layers() -> None:
    layers = parse_listing(LISTING)
    document = {
        "Layers": [
            {
                "Name": layer.name,
                "LayerType": layer.type,
                "TacticName": layer.tactic,
                "Metadata": "".join(f"[ONNX Layer: {node}]" for node in layer.onnx_nodes),
                "Inputs": [{"Name": t.name, "Dimensions": list(t.shape)} for t in layer.inputs],
                "Outputs": [{"Name": t.name, "Dimensions": list(t.shape)} for t in layer.outputs],
            }
            for layer in layers
        ]
    }
    assert parse_inspection(json.dumps(document)) == layers


def test_empty_listing_has_no_layers() -> None:
    assert parse_listing("") == ()


def test_attention_that_did_not_fuse_is_named() -> None:
    facts = NetworkFacts(
        inputs=(),
        outputs=(),
        aliases=(("past_key.0", "present_key.0"),),
        kv_cache_updates=("node_scatter",),
        attention=("a.0", "a.1"),
    )
    report = judge(
        facts,
        parse_listing(LISTING),
        (),
        engine_bytes=12_000_000,
        weights_bytes=10_000_000,
        split_attention=("a.2",),
    )
    assert report.fused_attention == ("a.0",)
    assert report.unfused_attention == ("a.1", "a.2")
    assert report.cache_copies == ("__myl_Move_myl1_9",)
    assert "attention did not fuse: a.1" in report.warnings()
    assert report.size() == "12.0 MB = 10.0 MB of weights + 2.0 MB of kernels and tables (1.20x)"
