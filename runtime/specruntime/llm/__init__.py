"""`LLM` and `AsyncLLM`: from a bundle, or from checkpoints, to answers, with the names that users of vLLM know."""

from specruntime.llm.engine import LLM, AsyncLLM

__all__ = ["LLM", "AsyncLLM"]
