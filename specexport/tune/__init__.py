"""Finding what pays on a user's own prompts and machine: acceptance, times, the best kind, length or tree.

`tune.run.tune` is the entry. `probing` measures, `prediction` applies the speed-up formula, `trials` measures what was
predicted best.
"""
