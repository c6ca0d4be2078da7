"""Builds speculative-decoding bundles: one recipe in, compiled target and draft engines out."""
