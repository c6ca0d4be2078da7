"""An option that a library does not offer is refused with the reason; nothing asked for is dropped."""

import pytest
from pydantic import ValidationError

from specexport.tensorrt.capability import CAPABILITIES
from specexport.tensorrt.options import TensorRTBackend


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("timing_cache", True, "no-ops"),
        ("version_compatible", True, "libnvinfer_lean"),
        ("hardware_compatibility", "ampere_plus", "compute_capabilities"),
        ("refit", True, "without a GPU"),
        ("strip_weights", True, "without a GPU"),
        ("weight_streaming", True, "of the same size"),
        ("optimization_level", 5, "takes no notice"),
    ],
)
def test_rtx_refuses_what_it_lacks(option: str, value: object, reason: str) -> None:
    with pytest.raises(ValidationError, match=f"(?s){option}: found .*not offered by tensorrt_rtx.*{reason}"):
        TensorRTBackend.model_validate({"kind": "tensorrt_rtx", option: value})
    assert TensorRTBackend.model_validate({"kind": "tensorrt", option: value})


def test_tensorrt_builds_for_its_own_device_only() -> None:
    with pytest.raises(ValidationError, match=r"compute_capabilities: found .*GPU of the build host"):
        TensorRTBackend.model_validate({"kind": "tensorrt", "compute_capabilities": ["SM89"]})


def test_unknown_compute_capability_lists_the_known_ones() -> None:
    with pytest.raises(ValidationError, match="found SM90, expected some of SM75, SM80"):
        TensorRTBackend.model_validate({"kind": "tensorrt_rtx", "compute_capabilities": ["SM89", "SM90"]})


def test_unknown_key_is_refused() -> None:
    with pytest.raises(ValidationError, match="workspace_mb"):
        TensorRTBackend.model_validate({"kind": "tensorrt_rtx", "workspace_mb": 5})


def test_fp32_needs_decomposable_attention() -> None:
    assert "fp32" not in TensorRTBackend(kind="tensorrt_rtx").precisions
    assert "fp32" in TensorRTBackend(kind="tensorrt_rtx", decomposable_attention=True).precisions


def test_every_refusal_has_a_reason() -> None:
    for capabilities in CAPABILITIES.values():
        for name, feature in capabilities.features().items():
            assert feature.offered or feature.reason, f"{capabilities.library}.{name}"
