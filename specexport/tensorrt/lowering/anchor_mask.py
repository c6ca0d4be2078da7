"""Every attention mask comes straight from a logical operator.

With a dynamic width, tensorrt-rtx 1.7 derives two internal operators of one name from a bool mask that a reshape or a
concatenation produced and several attentions read, and then refuses its own graph ("Graph contains more than one op
named ..._iota"). Behind a logical operator the same mask builds and fuses; the operator itself melts into the kernel
that makes the mask.
"""

import onnx_ir as ir

from specexport.passes import PassReport
from specexport.tensorrt.lowering.graph_edit import insert_node, rewrite_attention


class AnchorMask:
    """mask -> Or(mask, mask), once per mask."""

    name = "anchor-mask"
    requires = "Attention masks of bool"
    ensures = "the producer of every bool attention mask is an Or"

    def __call__(self, model: ir.Model) -> PassReport:
        anchored: dict[ir.Value, ir.Value] = {}
        return rewrite_attention(self.name, model, lambda graph, node: _anchor(graph, node, anchored))


def _anchor(graph: ir.Graph, node: ir.Node, anchored: dict[ir.Value, ir.Value]) -> str | None:
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    if mask is None:
        return "the node has no mask"
    if mask.dtype != ir.DataType.BOOL:
        return f"the mask is {mask.dtype}, expected bool"
    producer = mask.producer()
    if producer is not None and producer.op_type == "Or":
        return "the mask comes from an Or already"
    if mask not in anchored:
        anchored[mask] = insert_node(
            graph,
            node,
            "Or",
            [mask, mask],
            output=f"{mask.name}_anchored",
            dtype=mask.dtype,
            shape=mask.shape,
        )
    node.replace_input_with(3, anchored[mask])
    return None
