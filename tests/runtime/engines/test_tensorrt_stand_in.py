"""The stand-ins offer nothing that the real bindings do not, so that a call which does not exist cannot pass."""

from enum import IntEnum
from inspect import signature

import pytest

from tests.runtime.engines.cuda_stand_in import CUDA_MEMCPY2D, DriverStandIn, Machine
from tests.runtime.engines.tensorrt_stand_in import stand_in_module


def _members(offered: object) -> set[str]:
    """Public names of a stand-in class (its slots included) or namespace."""
    return set() if isinstance(offered, str) else {name for name in vars(offered) if not name.startswith("_")}


def test_every_attribute_exists_in_tensorrt_rtx() -> None:
    real = pytest.importorskip("tensorrt_rtx")
    for name, offered in vars(stand_in_module(Machine())).items():
        assert hasattr(real, name), name
        missing = [member for member in _members(offered) if not hasattr(getattr(real, name), member)]
        assert not missing, f"{name}: {missing}"


def test_unknown_attributes_cannot_be_set() -> None:
    module = stand_in_module(Machine())
    for kind in (module.IRuntimeConfig, module.IRuntimeCache):
        with pytest.raises(AttributeError):
            kind().no_such_attribute = 1
    with pytest.raises(AttributeError):
        module.Runtime(module.ILogger()).no_such_attribute = 1


def test_every_call_exists_in_cuda_bindings() -> None:
    real = pytest.importorskip("cuda.bindings.driver")
    for name, offered in vars(DriverStandIn).items():
        if name.startswith("_"):
            continue
        assert hasattr(real, name), name
        if isinstance(offered, type) and issubclass(offered, IntEnum):
            kind: type[IntEnum] = offered
            found = {member.name: int(getattr(getattr(real, name), member.name)) for member in kind}
            assert found == {member.name: member.value for member in kind}, name


def test_a_strided_copy_has_the_fields_and_arguments_of_the_real_one() -> None:
    real = pytest.importorskip("cuda.bindings.driver")
    copy = real.CUDA_MEMCPY2D()
    for field in CUDA_MEMCPY2D.__slots__:
        setattr(copy, field, real.CUmemorytype.CU_MEMORYTYPE_DEVICE if "Type" in field else 4096)
        assert int(getattr(copy, field)) == (2 if "Type" in field else 4096), field
    stated = real.cuMemcpy2DAsync.__doc__.splitlines()[0]
    taken = list(signature(DriverStandIn.cuMemcpy2DAsync).parameters)[1:]
    assert [name in stated for name in taken] == [True, True], stated
