"""Defines `serve`, which runs the OpenAI-compatible server."""

from pathlib import Path

import click

from specruntime.bundle import open_bundle
from specruntime.cli.options import bundle_argument, kernels_option, threads_option
from specruntime.engines import EngineOptions
from specruntime.errors import BackendMissing
from specruntime.serving.prefixes import PREFIX_CACHING, PrefixCaching

_POSITIVE = click.IntRange(min=1)
_SECONDS = click.FloatRange(min=0, min_open=True)


@click.command("serve")
@bundle_argument
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one."
)
@click.option("--slots", type=_POSITIVE, default=4, show_default=True, help="Number of concurrent requests.")
@click.option(
    "--workers",
    type=_POSITIVE,
    default=1,
    show_default=True,
    help="Threads that run rounds at the same time.",
)
@click.option(
    "--speculate-up-to",
    type=click.IntRange(min=0),
    metavar="N",
    help="Stop drafting above N rows per batch; default: decided from measurements.",
)
@click.option(
    "--prefix-caching",
    type=click.Choice(PREFIX_CACHING),
    default="exact",
    show_default=True,
    help="Reuse of cache rows between prompts with a common prefix; all: below fp32 too, where rounding may differ.",
)
@click.option(
    "--queue",
    type=click.IntRange(min=0),
    default=64,
    show_default=True,
    help="Requests that may wait; 429 beyond.",
)
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path),
    help="File of API keys, one per line; any of them opens /v1.",
)
@click.option("--model-name", help="What clients call the model; default: the bundle's name.")
@click.option("--max-prompt-tokens", type=_POSITIVE, help="Longest prompt; default: the bundle's capacity.")
@click.option(
    "--max-body-kb", type=_POSITIVE, default=1024, show_default=True, help="Longest request body; 413 beyond."
)
@click.option(
    "--timeout",
    type=_SECONDS,
    default=600.0,
    show_default=True,
    help="Seconds for a whole answer; 504 beyond.",
)
@click.option(
    "--read-timeout", type=_SECONDS, default=20.0, show_default=True,
    help="Seconds for a client to send the head of a request, and again for its body; 408 beyond.",
)  # fmt: skip
@click.option(
    "--write-timeout", type=_SECONDS, default=30.0, show_default=True,
    help="Disconnect a client that does not read for this many seconds.",
)  # fmt: skip
@click.option(
    "--keep-alive-timeout", type=_SECONDS, default=5.0, show_default=True,
    help="Seconds a connection is kept open between two requests.",
)  # fmt: skip
@click.option(
    "--drain-timeout", type=_SECONDS, default=60.0, show_default=True,
    help="Seconds for answers in progress after SIGTERM.",
)  # fmt: skip
@click.option(
    "--copy-weights",
    is_flag=True,
    help="Read weights into memory instead of mapping their files, which may then be overwritten.",
)
@threads_option
@kernels_option
def serve_command(
    bundle: Path,
    host: str,
    port: int,
    slots: int,
    workers: int,
    speculate_up_to: int | None,
    prefix_caching: PrefixCaching,
    queue: int,
    api_key_file: Path | None,
    model_name: str | None,
    max_prompt_tokens: int | None,
    max_body_kb: int,
    timeout: float,
    read_timeout: float,
    write_timeout: float,
    keep_alive_timeout: float,
    drain_timeout: float,
    copy_weights: bool,
    threads: int | None,
    kernels: str | None,
) -> None:
    """Serve the BUNDLE over HTTP: /v1/chat/completions, /v1/completions, /v1/models, and a page to try it at /.

    SIGTERM lets answers in progress end. Figures are at /metrics, states at /health and /ready.
    """
    try:
        from specruntime.server.main import serve
        from specruntime.server.settings import Settings, read_api_keys
    except ImportError as error:
        raise BackendMissing(
            f"the server needs {error.name}, which is not installed: pip install 'specruntime[server]'"
        ) from error
    keys = () if api_key_file is None else read_api_keys(api_key_file)
    options = EngineOptions(threads=threads, copy_weights=copy_weights, kernels=kernels)
    with open_bundle(bundle, options=options, text=True) as opened:
        settings = Settings(
            model_name=model_name or opened.manifest.name,
            api_keys=keys,
            max_body_bytes=1024 * max_body_kb,
            max_prompt_tokens=max_prompt_tokens,
            request_seconds=timeout,
            read_seconds=read_timeout,
            write_seconds=write_timeout,
            keep_alive_seconds=keep_alive_timeout,
        )
        serve(
            opened, settings, host=host, port=port, slots=slots, workers=workers,
            speculate_up_to=speculate_up_to, prefix_caching=prefix_caching, queue_limit=queue,
            drain_seconds=drain_timeout,
        )  # fmt: skip
