"""What a profile found, as JSON and as tables."""

from dataclasses import asdict, dataclass
from typing import Any

from specexport.profile.operators import WindowProfile
from specexport.profile.rounds import RoundProfile

_SHOWN = 8


@dataclass(frozen=True)
class ProfileReport:
    bundle: str
    machine: dict[str, Any]
    rounds: RoundProfile
    windows: tuple[WindowProfile, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        rounds = asdict(self.rounds) | {
            "host_ms": self.rounds.host_ms,
            "host_percent": self.rounds.host_percent,
        }
        windows = [asdict(window) | {"operator_ms": window.operator_ms} for window in self.windows]
        return {"bundle": self.bundle, "machine": self.machine, "rounds": rounds, "windows": windows}

    def phases(self) -> tuple[tuple[str, float], ...]:
        """Milliseconds of one average round by phase; their sum is the round."""
        found, count = self.rounds, max(self.rounds.rounds, 1)
        named = (("draft", found.draft_ms), ("verify", found.verify_ms), ("accept", found.accept_ms))
        rest = max(found.round_ms - sum(ms for _, ms in named), 0.0)
        return tuple((name, ms / count) for name, ms in (*named, ("commit", rest)))


def render_profile(report: ProfileReport, shown: int = _SHOWN) -> str:
    """The report as lines for people: a round, then every window with its `shown` dearest operators."""
    lines = [*_render_rounds(report), ""]
    for window in report.windows:
        lines += _render_window(window, shown)
    machine = report.machine
    lines.append(f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} threads")
    return "\n".join(lines)


def _render_rounds(report: ProfileReport) -> list[str]:
    found, phases = report.rounds, report.phases()
    whole = sum(ms for _, ms in phases)
    parts = ", ".join(f"{name} {ms:.2f}" for name, ms in phases)
    calls = ", ".join(f"{name} {count}" for name, count in found.target_calls.items())
    lines = [
        f"a round: {whole:.2f} ms ({parts}), {found.tokens} tokens in {found.rounds} rounds and their prefills",
        f"outside engine calls: {found.host_percent:.2f} % of the time",
        f"target windows: {calls}",
        f"open {found.open_ms:.0f} ms, first token {found.first_token_ms:.0f} ms later",
    ]
    if found.draft_calls:
        lines.insert(
            3, "draft windows: " + ", ".join(f"{name} {count}" for name, count in found.draft_calls.items())
        )
    return lines


def _render_window(window: WindowProfile, shown: int) -> list[str]:
    named = f"{window.graph} {window.profile}"
    lines = [
        f"{named}: width {window.width}, {window.ms:.2f} ms, {window.operator_ms:.2f} ms in operators when profiled"
    ]
    for operator in window.operators[:shown]:
        share = 100 * operator.ms / window.operator_ms if window.operator_ms else 0.0
        lines.append(f"  {operator.ms:8.3f} ms {share:5.1f} %  {operator.count:4} x {operator.name}")
    if rest := window.operators[shown:]:
        lines.append(f"  {sum(o.ms for o in rest):8.3f} ms {'':9}{sum(o.count for o in rest):4} others")
    return [*lines, ""]
