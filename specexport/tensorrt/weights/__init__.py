"""Weights of an engine in 8 or 4 bits: NVIDIA ModelOpt's numbers, written as the operators TensorRT fuses."""
