"""llama.cpp on the GGUF file as it is, plain or with prompt lookup."""

from collections.abc import Iterator

from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from protocol import arguments, serve

options = arguments()
draft = LlamaPromptLookupDecoding(num_pred_tokens=10) if options.mode == "lookup" else None
model = Llama(
    str(options.model),
    n_ctx=1024,
    n_threads=options.threads,
    n_threads_batch=options.threads,
    draft_model=draft,
    logits_all=draft is not None,
    verbose=False,
)


def generate(ids: list[int], most: int) -> Iterator[int]:
    model.reset()
    for count, token in enumerate(model.generate(ids, temp=0.0, repeat_penalty=1.0, reset=True), start=1):
        yield int(token)
        if count >= most:
            return


serve(generate, options.ends, ("llama-cpp-python",))
