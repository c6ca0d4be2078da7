"""Describes a bundle from its manifest and build record alone: contents and memory."""
