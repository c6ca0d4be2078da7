"""Weights into a module, exactly: no key missing, none left over, every shape as expected."""

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor, nn

from specexport.errors import CheckpointUnsupported
from specruntime.manifest.messages import nearest

_STORED = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def fill_module(
    module: nn.Module, weights: Mapping[str, Tensor], expected: Mapping[str, str], name: str
) -> None:
    """Copy `weights` into `module`; `expected` is the file's key of each parameter or buffer of the module to fill.

    Values are converted to the module's type. Raises `CheckpointUnsupported` naming the key, what was found and what
    was expected, and the draft as `name`.
    """
    require_keys(weights, set(expected.values()), name)
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    with torch.no_grad():
        for parameter, key in expected.items():
            require_shape(key, weights[key], tuple(tensors[parameter].shape), name)
            tensors[parameter].copy_(weights[key])


def require_keys(weights: Mapping[str, Tensor], expected: set[str], name: str) -> None:
    """Raise `CheckpointUnsupported` for the first key that is missing or not expected."""
    missing, extra = sorted(expected - weights.keys()), sorted(weights.keys() - expected)
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        instead = f"; it has {extra[0]!r}, which is not expected" if extra else ""
        raise CheckpointUnsupported(
            f"{name}: the weight {missing[0]!r}{others} is missing{instead}; the draft's config and its weights do "
            "not belong together, or its format is another (docs/drafts.md lists the keys)"
        )
    if extra:
        others = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        raise CheckpointUnsupported(
            f"{name}: found the weight {extra[0]!r}{others}, which this kind of draft does not use"
            f"{nearest(extra[0], expected)}; expected exactly the keys of docs/drafts.md"
        )


def require_shape(key: str, found: Tensor, expected: tuple[int, ...], name: str) -> None:
    """Raise `CheckpointUnsupported` with both shapes or types, or for weights with values that are not finite."""
    if tuple(found.shape) != expected:
        raise CheckpointUnsupported(
            f"{name}: {key} is {list(found.shape)}, expected {list(expected)} by its config and its target"
        )
    if found.dtype not in _STORED or found.layout is not torch.strided:
        form = "" if found.layout is torch.strided else f" ({str(found.layout).removeprefix('torch.')})"
        raise CheckpointUnsupported(
            f"{name}: {key} is of {str(found.dtype).removeprefix('torch.')}{form}, expected float32, float16 or "
            "bfloat16: numbers with a scale of their own are not read; save the draft in one of these types"
        )
    if prod(expected) and not torch.isfinite(found).all():
        raise CheckpointUnsupported(
            f"{name}: {key} holds values that are not finite; train or fetch it again"
        )
