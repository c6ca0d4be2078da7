"""Checkpoints: addresses, downloads, loading, and the reasons to refuse one."""
