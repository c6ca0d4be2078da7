"""transformers' `generate` on the fp32 checkpoint: eager, or with prompt lookup."""

from collections.abc import Iterator
from queue import Queue
from threading import Thread
from typing import Any

import torch
from protocol import arguments, serve
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer

options = arguments()
torch.set_num_threads(options.threads)
model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32, local_files_only=True).eval()
lookup = {"prompt_lookup_num_tokens": 10} if options.mode == "lookup" else {}


class Tokens(BaseStreamer):
    """Hands new tokens on as they are decided; the prompt comes first and is left out."""

    def __init__(self, prompt: int) -> None:
        self.queue: Queue[int | None] = Queue()
        self._skip = prompt

    def put(self, value: Any) -> None:
        for token in value.reshape(-1).tolist():
            if self._skip:
                self._skip -= 1
            else:
                self.queue.put(token)

    def end(self) -> None:
        self.queue.put(None)


def generate(ids: list[int], most: int) -> Iterator[int]:
    streamer = Tokens(len(ids))
    inputs = torch.tensor([ids])
    settings = {
        "attention_mask": torch.ones_like(inputs),
        "max_new_tokens": most,
        "do_sample": False,
        "eos_token_id": options.ends,
        "pad_token_id": options.ends[0],
        **lookup,
    }

    def run() -> None:
        try:
            with torch.no_grad():
                model.generate(inputs, streamer=streamer, **settings)
        finally:
            streamer.queue.put(None)

    thread = Thread(target=run)
    thread.start()
    while (token := streamer.queue.get()) is not None:
        yield token
    thread.join()


serve(generate, options.ends, ("transformers", "torch"))
