"""`GroupQueryAttention` reads a packed query-key-value projection as it is, without a `Split` before it."""

import onnx_ir as ir

from specexport.passes import PassReport


class PackAttentionInputs:
    name = "pack-attention-inputs"
    requires = "GroupQueryAttention whose query, key and value are flat"
    ensures = "no Split between a packed projection and its attention"

    def __call__(self, model: ir.Model) -> PassReport:
        changed, reasons = 0, []
        for node in model.graph:
            if node.op_type != "GroupQueryAttention" or node.domain != "com.microsoft":
                continue
            packed = _packed_source(node)
            if packed is None:
                reasons.append(
                    f"{node.name}: query, key and value are not the parts of one Split, in this order"
                )
                continue
            for index, value in enumerate((packed, None, None)):
                node.replace_input_with(index, value)
            changed += 1
        return PassReport(
            self.name, changed, tuple(reasons) or (() if changed else ("no GroupQueryAttention",))
        )


def _packed_source(attention: ir.Node) -> ir.Value | None:
    """The value that query, key and value together are, where they come out of one split of its last axis."""
    query = attention.inputs[0]
    split = query.producer() if query is not None else None
    if split is None or split.op_type != "Split" or list(attention.inputs[:3]) != list(split.outputs):
        return None
    return split.inputs[0] if split.attributes.get_int("axis", 0) in (-1, 2) else None
