"""GGUF files: metadata as a transformers config, tensors as its weights."""
