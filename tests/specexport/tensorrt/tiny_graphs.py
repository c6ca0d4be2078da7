"""Tiny canonical graphs with random weights, traced once per test run and architecture."""

from functools import cache

import onnx_ir as ir
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from specexport.export import check_supported, trace_graph
from specexport.graph.plan import PLAIN, GraphPlan
from specexport.passes import run_passes
from specexport.passes.pipeline import plan_passes

CAPACITY = 128
VOCAB = 250  # of 256: the tail is padding

SIZES: dict[str, object] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
}
ARCHITECTURES: dict[str, dict[str, object]] = {
    "llama": SIZES,
    "gemma2": {**SIZES, "sliding_window": 16, "attn_logit_softcapping": 5.0},
    "gpt2": {"vocab_size": 256, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "gemma3_text": {**SIZES, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
}


@cache
def _traced(architecture: str, dtype: torch.dtype) -> ir.Model:
    torch.manual_seed(0)
    config = AutoConfig.for_model(architecture, **ARCHITECTURES[architecture])
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    return trace_graph(model, check_supported(model), capacity=CAPACITY, vocab_size=VOCAB).model


def tiny_graph(
    architecture: str = "llama", dtype: torch.dtype = torch.float16, plan: GraphPlan = PLAIN
) -> ir.Model:
    """A fresh copy of the canonical graph as `plan` asks for it, to be changed freely."""
    model = ir.serde.deserialize_model(ir.serde.serialize_model(_traced(architecture, dtype)))
    run_passes(model, plan_passes(plan))
    return model
