"""The cache of downloads and build stages: entries, their keys, and what may be removed."""
