"""OpenVINO GenAI, plain or with prompt lookup."""

from collections.abc import Iterator
from queue import Queue
from threading import Thread
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as ov_genai
from protocol import arguments, serve

options = arguments()
settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": options.threads}
if options.mode == "lookup":
    settings["prompt_lookup"] = True
pipeline = ov_genai.LLMPipeline(str(options.model), "CPU", **settings)


class Tokens(ov_genai.StreamerBase):  # type: ignore[misc]
    """Hands tokens on as they come, one or several at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: Queue[int | None] = Queue()

    def write(self, token: Any) -> ov_genai.StreamingStatus:
        for each in token if isinstance(token, (list, tuple, np.ndarray)) else [token]:
            self.queue.put(int(each))
        return ov_genai.StreamingStatus.RUNNING

    def end(self) -> None:
        self.queue.put(None)


def generate(ids: list[int], most: int) -> Iterator[int]:
    config = ov_genai.GenerationConfig()
    config.max_new_tokens = most
    config.do_sample = False
    config.eos_token_id = options.ends[0]
    config.stop_token_ids = set(options.ends)
    if options.mode == "lookup":
        config.num_assistant_tokens, config.max_ngram_size = 5, 3
    inputs = ov_genai.TokenizedInputs(
        ov.Tensor(np.array([ids], np.int64)), ov.Tensor(np.ones((1, len(ids)), np.int64))
    )
    streamer = Tokens()

    def run() -> None:
        try:
            pipeline.generate(inputs, config, streamer)
        finally:
            streamer.queue.put(None)

    thread = Thread(target=run)
    thread.start()
    while (token := streamer.queue.get()) is not None:
        yield token
    thread.join()


serve(generate, options.ends, ("openvino-genai", "openvino"))
