"""The console script of a host that only runs bundles: what it prints, and how it ends."""

import errno
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import specruntime.cli.generate
from specruntime import SamplingParams, complete, load_manifest, open_bundle
from specruntime.cli import main
from specruntime.cli.generate import read_prompt
from specruntime.cli.options import sampling_params
from specruntime.drafts import NoneDraft
from specruntime.errors import InvalidArgument

PROMPT = "abcabcabc"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def succeed(*arguments: str | Path) -> Result:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result


def refusal(*arguments: str | Path) -> str:
    """The one line of a command that must be refused."""
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def test_the_streamed_text_is_the_answer(tiny_bundle: Path) -> None:
    with open_bundle(tiny_bundle) as bundle:
        codec = bundle.tokenizer
        assert codec is not None
        answer = complete(bundle.new_session(), codec.encode(PROMPT), SamplingParams(max_tokens=20), codec)
    result = succeed("generate", tiny_bundle, "--prompt", PROMPT, "--max-new-tokens", "20", "--stats")
    assert result.stdout == answer.text + "\n"
    assert "tokens/s" in result.stderr and "outside the engine" in result.stderr


@pytest.mark.parametrize("option", ["--seed", "--logprobs"])
def test_a_number_out_of_range_says_what_the_option_takes(tiny_bundle: Path, option: str) -> None:
    assert f"{option} is -1, expected an integer" in refusal(
        "generate", tiny_bundle, "--prompt", "a", option, "-1"
    )


def test_the_seed_that_was_drawn_is_shown_and_gives_the_answer_again(tiny_bundle: Path) -> None:
    command = ("generate", tiny_bundle, "--prompt", PROMPT, "--max-new-tokens", "20", "--temperature", "1")
    first, second = (json.loads(succeed(*command, "--json").stdout) for _ in range(2))
    assert first["seed"] != second["seed"] and first["token_ids"] != second["token_ids"]
    again = succeed(*command, "--json", "--stats", "--seed", str(first["seed"]))
    assert json.loads(again.stdout)["token_ids"] == first["token_ids"]
    assert f"seed {first['seed']}" in again.stderr


def test_compare_answers_again_without_drafts(tiny_bundle: Path) -> None:
    command = (
        "generate",
        tiny_bundle,
        "--prompt",
        PROMPT,
        "--max-new-tokens",
        "20",
        "--ignore-eos",
        "--compare",
    )
    assert "the tokens are the same" in succeed(*command).stderr
    comparison = json.loads(succeed(*command, "--json").stdout)["comparison"]
    assert comparison["equal"] is True
    assert comparison["speedup"] > 0
    assert run(*command, "--plain").exit_code == 2
    assert "use --accept match" in refusal(*command, "--accept", "rejection", "--temperature", "1", "--json")


def test_json_is_one_object_with_the_answer_and_its_figures(tiny_bundle: Path) -> None:
    command = (
        "generate",
        tiny_bundle,
        "--prompt",
        PROMPT,
        "--max-new-tokens",
        "12",
        "--ignore-eos",
        "--json",
        "--logprobs",
        "2",
    )
    found = json.loads(succeed(*command).stdout)
    assert set(found) == {"text", "token_ids", "finish_reason", "seed", "stats", "logprobs"}
    assert len(found["token_ids"]) == len(found["logprobs"]) == 12
    assert [entry["token"] for entry in found["logprobs"]] == found["token_ids"]
    assert found["finish_reason"] == "length"
    stats = found["stats"]
    assert stats["new_tokens"] == 12 and stats["rounds"] > 0 and stats["proposed"] > 0
    assert 0 < stats["host_percent"] < 100 and stats["tokens_per_second"] > 0 and stats["ttft_ms"] > 0


def test_an_answer_that_fills_the_cache_says_so(tiny_bundle: Path) -> None:
    command = ("generate", tiny_bundle, "--prompt", PROMPT, "--ignore-eos", "--max-new-tokens", "500")
    assert "fills the 256 tokens of `capacity`" in succeed(*command).stderr
    assert "fills" not in succeed(*command[:-1], "4").stderr


@pytest.mark.parametrize("law", [[], ["--temperature", "0.8", "--top-p", "0.9", "--seed", "3"]])
def test_plain_gives_the_same_tokens_in_more_rounds(tiny_bundle: Path, law: list[str]) -> None:
    command = [
        "generate",
        str(tiny_bundle),
        "--prompt",
        PROMPT,
        "--max-new-tokens",
        "32",
        "--ignore-eos",
        "--json",
        *law,
    ]
    speculative, plain = (json.loads(succeed(*command, *more).stdout) for more in ([], ["--plain"]))
    assert speculative["token_ids"] == plain["token_ids"]
    assert speculative["stats"]["rounds"] < plain["stats"]["rounds"] == 31
    assert plain["stats"]["proposed"] == 0


def test_a_prompt_may_come_from_a_file_or_from_stdin(tiny_bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT)
    command = ["generate", str(tiny_bundle), "--max-new-tokens", "8"]
    expected = succeed(*command, "--prompt", PROMPT).stdout
    assert succeed(*command, "--prompt-file", file).stdout == expected
    assert CliRunner().invoke(main, [*command, "--prompt-file", "-"], input=PROMPT).stdout == expected


def test_the_chat_template_is_applied_when_asked_for(tiny_bundle: Path) -> None:
    command = ("generate", tiny_bundle, "--prompt", PROMPT, "--max-new-tokens", "8")
    assert succeed(*command, "--chat").stdout != succeed(*command).stdout


def test_every_sampling_option_reaches_the_parameters(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[SamplingParams] = []

    def spy(**options: object) -> SamplingParams:
        seen.append(sampling_params(**options))  # type: ignore[arg-type]
        return seen[-1]

    monkeypatch.setattr(specruntime.cli.generate, "sampling_params", spy)
    options = (
        "--temperature 0.5 --top-k 7 --top-p 0.9 --min-p 0.1 --repetition-penalty 1.1 --presence-penalty 0.2 "
        "--frequency-penalty 0.3 --logit-bias 5=1.5 --logit-bias 6=-inf --seed 4 --stop x --stop yz "
        "--stop-token-id 9 --max-new-tokens 6 --min-new-tokens 2 --logprobs 1 --ignore-eos --accept rejection"
    )
    succeed("generate", tiny_bundle, "--prompt", PROMPT, "--json", *options.split())
    assert seen == [
        SamplingParams(
            temperature=0.5, top_k=7, top_p=0.9, min_p=0.1, repetition_penalty=1.1, presence_penalty=0.2,
            frequency_penalty=0.3, logit_bias={5: 1.5, 6: float("-inf")}, seed=4, stop=("x", "yz"),
            stop_token_ids=(9,), max_tokens=6, min_tokens=2, logprobs=1, ignore_eos=True, accept="rejection",
        )
    ]  # fmt: skip


def test_check_compares_and_prints_a_line_for_each(tiny_bundle: Path) -> None:
    result = succeed("check", tiny_bundle)
    *answers, verdict = result.stdout.splitlines()
    assert len(answers) == 4
    assert verdict == "4 of 4 answers match"
    assert all("48 tokens equal to plain" in line for line in answers)
    report = json.loads(succeed("check", tiny_bundle, "--max-new-tokens", "5", "--json").stdout)
    assert report["passed"] is True
    assert {comparison["tokens"] for comparison in report["comparisons"]} == {5}


def test_check_follows_one_prompt_round_by_round(tiny_bundle: Path) -> None:
    prompt = load_manifest(tiny_bundle).check.prompts[0].id
    text = succeed("check", tiny_bundle, "--trace", prompt).stdout
    assert text.count("the answers do not differ; the last round") == 2, "greedy and sampled"
    assert "position     best   second     margin  sees" in text and "plain:" in text
    traces = json.loads(succeed("check", tiny_bundle, "--trace", prompt, "--json").stdout)
    assert [(trace["law"], trace["position"]) for trace in traces] == [("greedy", None), ("sampled", None)]
    assert traces[1]["speculative"]["seed"] == 1 and traces[1]["plain"][0]["tokens"]
    assert f"no check prompt 'nowhere', this bundle has: {prompt}" in refusal(
        "check", tiny_bundle, "--trace", "nowhere"
    )


def test_inspect_prints_text_or_json(tiny_bundle: Path) -> None:
    assert succeed("inspect", tiny_bundle).stdout.startswith("tiny-random ")
    assert json.loads(succeed("inspect", tiny_bundle, "--json").stdout)["name"] == "tiny-random"


def test_bad_input_is_refused_in_one_line(tiny_bundle: Path, tmp_path: Path) -> None:
    prompted = ("generate", tiny_bundle, "--prompt")
    assert "the prompt is empty, expected some text" in refusal(*prompted, "")
    assert "the prompt is empty" in refusal(*prompted, " \n ")
    assert "pass the capacity of 256: shorten the prompt" in refusal(*prompted, "x" * 300)
    assert "--top-p is 3.0, expected a number above 0" in refusal(*prompted, "a", "--top-p", "3")
    assert "--stop-token-id is (-1,), expected" in refusal(*prompted, "a", "--stop-token-id", "-1")
    few = ("--min-new-tokens", "5", "--max-new-tokens", "4")
    limit = "--min-new-tokens is 5, expected an integer from 0 to --max-new-tokens (4)"
    assert limit in refusal(*prompted, "a", *few)
    assert "--prompt is not UTF-8 text" in refusal(*prompted, "a\udcff")
    missing = tmp_path / "none"
    assert "build one with: specexport build" in refusal("generate", missing, "--prompt", "a")
    assert "No such file" in refusal("generate", tiny_bundle, "--prompt-file", missing)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8 text" in refusal("generate", tiny_bundle, "--prompt-file", tmp_path / "binary")
    for command in ("inspect", "check"):
        assert "no bundle at" in refusal(command, missing)


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate"],
        ["generate", "some.bundle"],
        ["generate", "some.bundle", "--prompt", "a", "--prompt-file", "b"],
        ["generate", "some.bundle", "--prompt", "a", "--tempreature", "1"],
        ["generate", "some.bundle", "--prompt", "a", "--logit-bias", "five=1"],
        ["generate", "some.bundle", "--prompt", "a", "--accept", "typical"],
        ["generate", "some.bundle", "--prompt", "a", "--max-new-tokens", "0"],
        ["check", "some.bundle", "--max-new-tokens", "0"],
        ["generrate"],
    ],
)
def test_usage_errors_exit_2(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Usage:" in result.stderr and "Traceback" not in result.output


@pytest.mark.parametrize("command", [["generate", "some.bundle", "--prompt", "a"], ["check", "some.bundle"]])
def test_a_limit_of_no_tokens_is_refused_by_option_and_range(command: list[str]) -> None:
    result = run(*command, "--max-new-tokens", "0")
    assert "'--max-new-tokens': 0 is not in the range x>=1" in result.stderr


def test_stdin_is_utf8_and_open(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["generate", str(tiny_bundle), "--prompt-file", "-"]
    result = CliRunner().invoke(main, command, input=b"a\xff")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "the prompt file - cannot be read: it is not UTF-8 text" in result.stderr
    with pytest.raises(InvalidArgument, match="reads stdin, which is closed; pipe a prompt in"):
        monkeypatch.setattr("sys.stdin", None)
        read_prompt(None, Path("-"))


def test_what_cannot_be_compared_is_refused_before_the_answer(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(*arguments: object) -> None:
        raise AssertionError("an answer was begun")

    monkeypatch.setattr(specruntime.cli.generate, "TimedAnswer", begin)
    command = ("generate", tiny_bundle, "--prompt", PROMPT, "--compare")
    assert "use --accept match" in refusal(*command, "--accept", "rejection", "--temperature", "1")
    draftless = open_bundle(tiny_bundle)
    draftless.manifest = draftless.manifest.model_copy(update={"draft": NoneDraft()})
    monkeypatch.setattr(specruntime.cli.generate, "open_bundle", lambda *_, **__: draftless)
    assert "--compare needs drafts, and tiny-random has none" in refusal(*command)


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(specruntime.cli.generate, "open_bundle", fail)


def test_an_interrupt_exits_130(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, KeyboardInterrupt())
    result = run("generate", "some.bundle", "--prompt", "a")
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError("two\nlines"), "unexpected RuntimeError: two lines; set SPECRUNTIME_DEBUG=1"),
        (OSError(errno.EACCES, "Permission denied", "model.bin"), "model.bin: Permission denied"),
        (MemoryError(), "out of memory"),
    ],
)
def test_no_error_prints_a_traceback_unless_asked(
    monkeypatch: pytest.MonkeyPatch, error: Exception, line: str
) -> None:
    fail_with(monkeypatch, error)
    assert line in refusal("generate", "some.bundle", "--prompt", "a")
    monkeypatch.setenv("SPECRUNTIME_DEBUG", "1")
    assert run("generate", "some.bundle", "--prompt", "a").exception is error
