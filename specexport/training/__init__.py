"""Trains drafts on a target's own answers: `specexport train`.

questions -> dialogues (the target answers) -> features (what the target computes, once) -> a task per draft kind ->
one loop. Knows nothing of bundles or backends.
"""
