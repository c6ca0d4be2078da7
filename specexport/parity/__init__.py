"""Compares exported graphs with eager PyTorch, and integer weights with the checkpoint's own."""
