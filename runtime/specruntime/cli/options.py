"""Command-line options that become `SamplingParams`: spelled once for every command that decodes."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from specruntime.engines import EngineOptions
from specruntime.errors import InvalidArgument
from specruntime.sampling.params import SamplingParams

DEFAULT_NEW_TOKENS = 128

# Fields of `SamplingParams` whose options are not spelled as they are.
_OPTION_NAMES = {"min_tokens": "--min-new-tokens", "stop_token_ids": "--stop-token-id"}
_F = TypeVar("_F", bound=Callable[..., Any])


class _Bias(click.ParamType[tuple[int, float]]):
    name = "ID=BIAS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, float]:
        token, _, bias = str(value).partition("=")
        try:
            return int(token), float(bias)
        except ValueError:
            self.fail(f"{value!r} is not a token id, '=' and a number, as in 42=-inf", param, ctx)


def max_new_tokens_option(default: int | None = DEFAULT_NEW_TOKENS) -> Callable[[_F], _F]:
    """`--max-new-tokens`; None where a bundle brings its own number."""
    return click.option(
        "--max-new-tokens",
        type=click.IntRange(min=1),
        default=default,
        show_default=default is not None,
        help="Maximum number of new tokens.",
    )


def measured_sampling_options(command: _F) -> _F:
    """Return the options that `bench` and `tune` share with `generate`. They measure the same answers every time: seed
    0.
    """
    seed = click.option("--seed", type=int, default=0, show_default=True, help="Random seed.")
    return _distribution_options(seed(command))


def _distribution_options(command: _F) -> _F:
    for option in (
        click.option(
            "--top-p", type=float, default=1.0, show_default=True, help="Nucleus sampling threshold."
        ),
        click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy."),
    ):
        command = option(command)
    return command


_SAMPLING_OPTIONS = (
    click.option("--seed", type=int, help="Random seed (default: a fresh one; --stats and --json show it)."),
    click.option(
        "--top-k", type=int, default=0, show_default=True, help="Keep the k most likely tokens; 0 is off."
    ),
    click.option(
        "--min-p",
        type=float,
        default=0.0,
        show_default=True,
        help="Least probability relative to the most likely token.",
    ),
    click.option(
        "--repetition-penalty",
        type=float,
        default=1.0,
        show_default=True,
        help="Applied to tokens of prompt and answer.",
    ),
    click.option(
        "--presence-penalty",
        type=float,
        default=0.0,
        show_default=True,
        help="Applied to tokens of the answer.",
    ),
    click.option(
        "--frequency-penalty",
        type=float,
        default=0.0,
        show_default=True,
        help="Applied to tokens of the answer.",
    ),
    click.option("--logit-bias", type=_Bias(), multiple=True, help="Added to a token's logit; -inf bans it."),
    click.option(
        "--stop", metavar="TEXT", multiple=True, help="Ends the answer; may be given several times."
    ),
    click.option("--stop-token-id", "stop_token_ids", type=int, multiple=True, help="Ends the answer."),
    click.option(
        "--min-new-tokens",
        "min_tokens",
        type=int,
        default=0,
        show_default=True,
        help="Minimum number of new tokens.",
    ),
    click.option("--logprobs", type=int, help="Also report the n most likely tokens; printed with --json."),
    click.option("--ignore-eos", is_flag=True, help="Do not stop at the model's end tokens."),
    click.option(
        "--accept",
        type=click.Choice(["match", "rejection"]),
        default="match",
        show_default=True,
        help="match: equal seeds give the tokens of plain decoding. rejection: equal in distribution.",
    ),
)


def sampling_options(command: _F) -> _F:
    """Every option of `SamplingParams`; the command passes what it receives to `sampling_params`."""
    for option in reversed(_SAMPLING_OPTIONS):
        command = option(command)
    return max_new_tokens_option()(_distribution_options(command))


def sampling_params(
    *, max_new_tokens: int, logit_bias: tuple[tuple[int, float], ...] = (), **options: Any
) -> SamplingParams:
    """Raise `InvalidArgument` for a value out of range, by the name of its option."""
    try:
        return SamplingParams(max_tokens=max_new_tokens, logit_bias=dict(logit_bias), **options)
    except InvalidArgument as error:
        field, _, rest = str(error).partition(" ")
        option = _OPTION_NAMES.get(field, "--" + field.replace("_", "-"))
        # None is what an option is that was not given.
        rest = re.sub(r"expected None(?: \([^)]*\))? or ", "expected ", rest)
        raise InvalidArgument(f"{option} {rest.replace('max_tokens', '--max-new-tokens')}") from error


bundle_argument = click.argument("bundle", type=click.Path(path_type=Path))
threads_option = click.option(
    "--threads", type=click.IntRange(min=1), help="CPU threads per engine; default: what the bundle says."
)
kernels_option = click.option(
    "--kernels",
    metavar="PATH",
    help="Operators of specruntime-kernels: off, auto, or an instruction-set path such as avx2 "
    "(default: $SPECRUNTIME_KERNELS, else auto).",
)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object.")


def engine_options(threads: int | None, kernels: str | None = None) -> EngineOptions:
    return EngineOptions(threads=threads, kernels=kernels)
