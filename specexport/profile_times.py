"""How long each window of a bundle's graph takes on the build host, or why it cannot run there."""

from dataclasses import dataclass, field
from pathlib import Path

from specexport.draft_profiles import LAW_SUFFIX
from specexport.plan_checks import DRAFT_PROFILE
from specexport.step_times import measure_window_times
from specruntime.errors import BackendIncompatible, BackendMissing
from specruntime.manifest import GraphSpec


@dataclass(frozen=True)
class ProfileTimes:
    """Median milliseconds by profile name; none, and the `reason`, where this machine cannot run the engine."""

    by_name: dict[str, float] = field(default_factory=dict)
    reason: str | None = None

    def record(self, spec: GraphSpec) -> dict[str, object]:
        """For the build record: `step_ms` by width, and by profile where a width has several."""
        if self.reason is not None:
            return {"step_ms": None, "step_ms_reason": self.reason}
        usual = [p for p in spec.profiles if not p.name.endswith(LAW_SUFFIX) and p.name != DRAFT_PROFILE]
        times = {str(p.width): self.by_name[p.name] for p in reversed(usual or spec.profiles)}
        widths = dict(sorted(times.items(), key=lambda item: int(item[0])))
        return {"step_ms": widths, "profile_ms": self.by_name}


def measure_profile_times(spec: GraphSpec, root: Path) -> ProfileTimes:
    """Times every profile of a graph whose files lie in `root`."""
    try:
        return ProfileTimes(measure_window_times(spec, root))
    except (BackendMissing, BackendIncompatible) as error:  # a device this host lacks: parity ran on its CPU
        return ProfileTimes(reason=f"the build host cannot run the engine: {error}")
