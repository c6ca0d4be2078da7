"""A profile of a bundle: every window and operator of the graph's own file, phases that add up, a picture, refusals."""

import json
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from specexport.cli import main
from specexport.profile.operators import OperatorTime, WindowProfile, profile_windows
from specexport.profile.report import ProfileReport, draw_profile, render_profile
from specexport.profile.rounds import RoundProfile, profile_rounds
from specruntime.bundle import load_manifest
from specruntime.engines import EngineOptions
from specruntime.errors import InvalidArgument
from specruntime.inspection.summary import kernels_here
from specruntime.session import Session
from tests.runtime.scripted_bundle import scripted_bundle

ROUNDS = RoundProfile(
    rounds=10,
    tokens=25,
    round_ms=100.0,
    draft_ms=5.0,
    verify_ms=90.0,
    accept_ms=1.0,
    prefill_ms=20.0,
    target_engine_ms=105.0,
    draft_engine_ms=3.0,
    target_calls={"step": 4, "verify_4": 6},
    draft_calls={"step": 9},
    open_ms=500.0,
    first_token_ms=30.0,
)
WINDOW = WindowProfile(
    "target", "step", 1, 9.0, (OperatorTime("MatMulNBits 576 x 960", 30, 6.0), OperatorTime("Mul", 60, 2.0))
)
REPORT = ProfileReport(
    "x.bundle", {"processor": "some processor", "cores": 2, "threads": 2}, ROUNDS, (WINDOW,)
)


def test_phases_add_up_to_a_round_and_the_host_is_what_engines_leave() -> None:
    assert dict(REPORT.phases()) == {"draft": 0.5, "verify": 9.0, "accept": 0.1, "commit": pytest.approx(0.4)}
    assert sum(ms for _, ms in REPORT.phases()) == pytest.approx(10.0)
    assert ROUNDS.host_ms == pytest.approx(12.0) and ROUNDS.host_percent == pytest.approx(10.0)


def test_a_prefill_is_in_no_phase_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that ticks once a reading, a round has a second of each phase, and a prefill some of its own."""
    bundle, _ = scripted_bundle()
    monkeypatch.setattr("specexport.profile.rounds.open_bundle", lambda *_, **__: bundle)
    monkeypatch.setattr("specexport.profile.rounds._prompts", lambda _: [[3, 5, 3, 5, 3], [7, 2]])
    monkeypatch.setattr(bundle, "new_session", partial(ticking_session, bundle.new_session))
    rounds = profile_rounds(Path("x.bundle"), EngineOptions(), 20)
    assert rounds.rounds > 4 and rounds.prefill_ms > 0
    assert rounds.draft_ms == pytest.approx(2e3 * rounds.rounds), "its proposal and its observation"
    assert rounds.verify_ms == rounds.accept_ms == pytest.approx(1e3 * rounds.rounds)
    assert rounds.draft_ms + rounds.verify_ms + rounds.accept_ms <= rounds.round_ms


def ticking_session(new_session: Callable[[], Session]) -> Session:
    session, ticks = new_session(), count()
    session._phases.clock = lambda: float(next(ticks))
    return session


def test_the_table_names_windows_operators_and_what_it_leaves_out() -> None:
    text = render_profile(REPORT, shown=1)
    assert "a round: 10.00 ms (draft 0.50, verify 9.00" in text
    assert "target step: width 1, 9.00 ms" in text
    assert "30 x MatMulNBits 576 x 960" in text and "2.000 ms" in text and "60 others" in text
    assert "draft windows: step 9" in text


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    draw_profile(REPORT, tmp_path / "profile.png")
    assert (tmp_path / "profile.png").stat().st_size > 1000


def test_another_engine_is_refused(tiny_bundle: Path) -> None:
    target = load_manifest(tiny_bundle).target
    engine = SimpleNamespace(kind="tensorrt")
    with pytest.raises(InvalidArgument, match="runs on tensorrt, expected onnxruntime"):
        profile_windows(
            "target", target.model_copy(update={"engine": engine}), tiny_bundle, EngineOptions(threads=1)
        )


def test_every_window_is_taken_apart(tiny_bundle: Path) -> None:
    target = load_manifest(tiny_bundle).target
    attention = "GroupQueryAttention" if kernels_here(target)[0] is None else "WindowAttention"
    windows = profile_windows("target", target, tiny_bundle, EngineOptions(threads=1), repeats=2)
    assert [window.profile for window in windows] == [profile.name for profile in target.profiles]
    for window in windows:
        counts = {operator.name.split()[0]: operator.count for operator in window.operators}
        assert counts[attention] == target.layers
        assert window.ms > 0 and all(operator.ms >= 0 for operator in window.operators)
    assert len({sum(operator.count for operator in window.operators) for window in windows}) == 1


def test_the_command_prints_json_and_draws(tiny_bundle: Path, tmp_path: Path) -> None:
    picture = tmp_path / "profile.png"
    arguments = ["profile", str(tiny_bundle), "--max-new-tokens", "4", "--threads", "1", "--json"]
    done = CliRunner().invoke(main, [*arguments, "--plot", str(picture)])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["rounds"]["tokens"] > 0 and {w["graph"] for w in found["windows"]} == {"target", "draft"}
    assert picture.is_file()
