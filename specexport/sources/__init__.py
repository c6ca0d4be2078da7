"""Where checkpoints come from: local files, the hub, a wheel on PyPI, or a seed.

`locate(source)` puts the files of a source on this machine; `random_model` and `noise` make weights from a seed.
"""
