"""One file a system: each runs in that system's own environment and answers requests from `run.py` on stdin."""
