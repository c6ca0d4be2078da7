"""Measuring a bundle: speed against plain decoding and PyTorch, acceptance, the loop's own time, memory.

`bench.run.run_bench` is the entry. Nothing is imported here: the memory probe starts from this package and must load
only what a production host loads.
"""
