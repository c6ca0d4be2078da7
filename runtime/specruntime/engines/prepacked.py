"""Whether weights that were packed at build serve this host, and if not, why: they are packed at open then.

The library itself packs a weight at open and takes the saved one only where both agree to the byte, so a record that is
wrong costs memory and never a number. Owns which processor features decide how weights are packed.
"""

import logging
import platform
from pathlib import Path

from specruntime.manifest.schema import PrepackedWeights

LOG = logging.getLogger("specruntime.engines")

# By these ONNX Runtime's kernels choose how they pack, in the words of /proc/cpuinfo.
_X86 = """avx avx2 fma f16c avx_vnni avx_vnni_int8 avx_ne_convert avx512f avx512bw avx512dq avx512vl avx512_vnni
avx512_bf16 avx512_fp16 amx_tile amx_int8 amx_bf16"""
_ARM = "asimd asimddp asimdhp bf16 i8mm sme sme2 sve sve2 svebf16 svei8mm"
_FEATURES = frozenset((*_X86.split(), *_ARM.split()))
_CPUINFO = Path("/proc/cpuinfo")


def architecture() -> str:
    """`x86_64`, `aarch64` and the like."""
    return platform.machine()


def processor_features() -> tuple[str, ...] | None:
    """Those of this processor that decide how weights are packed, sorted; None if the system does not report them."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return None
    listed = (line.partition(":") for line in lines)
    words = next((words.split() for key, _, words in listed if key.strip() in ("flags", "Features")), None)
    return None if words is None else tuple(sorted(_FEATURES.intersection(words)))


def installed_version() -> str | None:
    """Return the version of onnxruntime; None where it is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    return str(onnxruntime.__version__)


def unfit(packed: PrepackedWeights, library: str | None) -> str | None:
    """Why this host with onnxruntime `library` packs at open instead; None where the saved weights are for it."""
    if library is None:
        return "onnxruntime is not installed"
    if library != packed.version:
        return f"onnxruntime {library} is installed, they were packed by {packed.version}"
    if architecture() != packed.architecture:
        return f"this processor is {architecture()}, they were packed for {packed.architecture}"
    found = processor_features()
    if found is None:
        return "this system does not report the processor's features"
    lacking = ", ".join(name for name in packed.features if name not in found)
    beyond = ", ".join(name for name in found if name not in packed.features)
    differences = [*([f"lacks {lacking}"] if lacking else []), *([f"has {beyond}"] if beyond else [])]
    if differences:
        return f"they were packed for another processor: this one {' and '.join(differences)}"
    return None


def choose(
    packed: PrepackedWeights | None, library: str, *, provider: str, copied: bool
) -> PrepackedWeights | None:
    """`packed` where it is used; says in one line of log which and why. `copied`: weights are read into own memory."""
    if packed is None:
        return None
    reason = unfit(packed, library)
    if reason is not None:
        LOG.warning("packed weights of %s are not used, weights are packed at open: %s", packed.file, reason)
        return None
    if provider != "cpu" or copied:
        asked = "weights are to be copied" if copied else f"the provider is {provider}"
        LOG.info("packed weights of %s are not used: %s", packed.file, asked)
        return None
    LOG.info("packed weights of %s are used", packed.file)
    return packed
