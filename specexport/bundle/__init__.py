"""Writes bundles: the directory as a whole, its records, its times, and whether it is up to date."""
