"""`generate`: one answer, streamed as text or printed as one JSON object."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from specruntime.bundle import LoadedBundle, open_bundle
from specruntime.cli.options import (
    bundle_argument,
    engine_options,
    kernels_option,
    sampling_options,
    sampling_params,
    threads_option,
)
from specruntime.errors import EmptyPrompt, InvalidArgument
from specruntime.generation import Delta, TimedAnswer
from specruntime.sampling.params import SamplingParams
from specruntime.text.codec import TextCodec


@click.command("generate")
@bundle_argument
@click.option("--prompt", metavar="TEXT", help="The prompt.")
@click.option(
    "--prompt-file", type=click.Path(path_type=Path), metavar="FILE", help="Reads the prompt; - is stdin."
)
@click.option("--chat", is_flag=True, help="Wrap the prompt in the bundle's chat template.")
@sampling_options
@click.option("--plain", is_flag=True, help="Decode without drafts.")
@click.option("--stats", is_flag=True, help="Print statistics to stderr.")
@click.option(
    "--compare", is_flag=True, help="Then answer again without drafts: speed-up and equality of the tokens."
)
@threads_option
@kernels_option
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object: text, token_ids, finish_reason, seed, stats."
)
def generate_command(
    bundle: Path,
    prompt: str | None,
    prompt_file: Path | None,
    chat: bool,
    plain: bool,
    stats: bool,
    compare: bool,
    threads: int | None,
    kernels: str | None,
    as_json: bool,
    **sampling: Any,
) -> None:
    """Answer a prompt with the BUNDLE's models."""
    if compare and plain:
        raise click.UsageError("--compare measures plain decoding against drafts; use it without --plain.")
    text = read_prompt(prompt, prompt_file)
    params = sampling_params(**sampling).seeded()
    if compare:
        _require_equal_tokens(params)
    with open_bundle(bundle, options=engine_options(threads, kernels), text=True) as opened:
        if compare:
            _require_drafts(opened)
        codec = require_codec(opened)
        ids = codec.chat([{"role": "user", "content": text}]) if chat else codec.encode(text)
        answer = TimedAnswer(opened.new_session(speculate=not plain), ids, params, codec)
        deltas = list(answer) if as_json else list(_stream(answer))
        if not as_json and deltas and deltas[-1].finish_reason == "capacity":
            room = opened.manifest.target.capacity
            click.echo(
                f"the answer ends here: with the prompt it fills the {room} tokens of `capacity`", err=True
            )
        if stats:
            click.echo(_render_stats(answer, params), err=True)
        result = _as_dict(deltas, answer, params)
        if compare:
            result["comparison"] = _compare(opened, ids, params, codec, result)
        if as_json:
            click.echo(json.dumps(result, ensure_ascii=False))
        elif compare:
            click.echo(_render_comparison(result["comparison"]), err=True)


def _require_equal_tokens(params: SamplingParams) -> None:
    if params.draws_drafts:
        raise InvalidArgument(
            "--compare needs equal tokens, found --accept rejection with a temperature; use --accept match"
        )


def _require_drafts(opened: LoadedBundle) -> None:
    if not opened.manifest.draft.nodes:
        raise InvalidArgument(
            f"--compare needs drafts, and {opened.manifest.name} has none; leave the option out"
        )


def _compare(
    opened: LoadedBundle, ids: list[int], params: SamplingParams, codec: TextCodec, drafted: dict[str, Any]
) -> dict[str, Any]:
    """Return the same answer without drafts."""
    plain = TimedAnswer(opened.new_session(speculate=False), ids, params, codec)
    tokens = [token for delta in plain for token in delta.tokens]
    return {
        "equal": tokens == drafted["token_ids"],
        "plain_tokens_per_second": plain.tokens_per_second,
        "speedup": drafted["stats"]["tokens_per_second"] / plain.tokens_per_second,
    }


def _render_comparison(comparison: dict[str, Any]) -> str:
    return (
        f"without drafts: {comparison['plain_tokens_per_second']:.1f} tokens/s, "
        f"so {comparison['speedup']:.2f}x with them; the tokens are "
        f"{'the same' if comparison['equal'] else 'NOT the same: run `check` on this bundle'}"
    )


def read_prompt(prompt: str | None, prompt_file: Path | None) -> str:
    """Return the prompt's text, from exactly one of the two options. Raises `EmptyPrompt` or `InvalidArgument`."""
    if (prompt is None) == (prompt_file is None):
        raise click.UsageError("Give a prompt with either --prompt or --prompt-file.")
    text = prompt if prompt is not None else _read_file(prompt_file or Path("-"))
    if not text.strip():
        raise EmptyPrompt("the prompt is empty, expected some text in --prompt or --prompt-file")
    if any(
        "\ud800" <= character <= "\udfff" for character in text
    ):  # how Python shows bytes that are no UTF-8
        raise InvalidArgument("--prompt is not UTF-8 text, expected text; set the terminal to UTF-8")
    return text


def _read_file(path: Path) -> str:
    """Return the file's text; the bytes of stdin are UTF-8 whatever the locale says."""
    try:
        data = _read_stdin() if str(path) == "-" else path.read_bytes()
        return data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidArgument(
            f"the prompt file {path} cannot be read: {reason}; give another --prompt-file"
        ) from error


def _read_stdin() -> bytes:
    if sys.stdin is None:  # what Python makes of a closed one
        raise InvalidArgument("--prompt-file - reads stdin, which is closed; pipe a prompt in or name a file")
    return sys.stdin.buffer.read()


def require_codec(bundle: LoadedBundle) -> TextCodec:
    """Return the bundle's tokenizer. Raises `InvalidArgument` where it has none."""
    codec = bundle.tokenizer
    if codec is None:
        raise InvalidArgument(
            f"{bundle.manifest.name} has no tokenizer, so it takes token ids and no text: use specruntime from Python"
        )
    return codec


def _stream(answer: TimedAnswer) -> Iterator[Delta]:
    """Show each delta's text as it comes."""
    for delta in answer:
        click.echo(delta.text, nl=False)
        yield delta
    click.echo()


def _as_dict(deltas: list[Delta], answer: TimedAnswer, params: SamplingParams) -> dict[str, Any]:
    result: dict[str, Any] = {
        "text": "".join(delta.text for delta in deltas),
        "token_ids": [token for delta in deltas for token in delta.tokens],
        "finish_reason": deltas[-1].finish_reason,
        "seed": params.seed,
        "stats": answer.as_dict(),
    }
    if params.logprobs is not None:
        result["logprobs"] = [
            {"token": entry.token, "logprob": entry.logprob, "top": [list(pair) for pair in entry.top]}
            for delta in deltas
            for entry in delta.logprobs or ()
        ]
    return result


def _render_stats(answer: TimedAnswer, params: SamplingParams) -> str:
    stats: dict[str, Any] = answer.as_dict()
    launches = sum(sum(stats[f"{role}_calls"].values()) for role in ("target", "draft"))
    replays = sum(sum(profiles.values()) for profiles in stats["graph_replays"].values())
    seed = f"\nseed {params.seed}" if params.temperature > 0 else ""
    replayed = f"\n{replays} of {launches} engine calls replayed a captured CUDA graph" if replays else ""
    return (
        f"{answer.new_tokens} tokens in {stats['total_ms'] / 1e3:.2f} s: {answer.tokens_per_second:.1f} tokens/s, "
        f"first after {stats['ttft_ms']:.0f} ms, then {answer.decode_tokens_per_second:.1f} tokens/s\n"
        f"{stats['rounds']} rounds, {stats['proposed']} drafted, {stats['accepted']} accepted, "
        f"{stats['acceptance_length']:.2f} tokens a round; {answer.host_percent:.1f} % of the time outside the engine"
        f"{replayed}{seed}"
    )
