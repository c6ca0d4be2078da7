"""A bundle, plain or with its drafts."""

from collections.abc import Iterator

from protocol import arguments, serve

import specruntime
from specruntime.engines import EngineOptions

options = arguments()
bundle = specruntime.open_bundle(options.model, options=EngineOptions(threads=options.threads), verify=False)
session = bundle.new_session(speculate=options.mode != "plain")


def generate(ids: list[int], most: int) -> Iterator[int]:
    session.reset()
    params = specruntime.SamplingParams(max_tokens=most)
    for delta in specruntime.generate(session, ids, params, bundle.tokenizer):
        yield from delta.tokens


serve(generate, options.ends, ("specruntime", "onnxruntime", "numpy"))
