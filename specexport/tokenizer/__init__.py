"""The tokenizer of a bundle: the checkpoint's own, taken over as it is or built from what a GGUF file states."""
