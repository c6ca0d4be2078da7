"""Graphs of a build: the canonical graph, a backend's variant of it, and the files both lie in."""
