"""onnxruntime-genai on a model of its own builder; plain, or with its n-gram drafts."""

from collections.abc import Iterator

import onnxruntime_genai as og
from protocol import arguments, serve

options = arguments()
config = og.Config(str(options.model))
config.overlay(
    '{"model": {"decoder": {"session_options": {"intra_op_num_threads": %d}}}}' % options.threads  # noqa: UP031
)
model = og.Model(config)


def generate(ids: list[int], most: int) -> Iterator[int]:
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=len(ids) + most, do_sample=False)
    if options.mode == "lookup":
        params.set_speculative_options(ngram_size=3)
    generator = og.Generator(model, params)
    generator.append_tokens(ids)
    while not generator.is_done():
        generator.generate_next_token()
        yield from generator.get_next_tokens()


serve(generate, options.ends, ("onnxruntime-genai", "onnxruntime"))
