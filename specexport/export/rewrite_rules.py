"""Frees a graph from the rewrite rules that have been over it.

onnxscript's rules are objects of its modules, and each keeps the last graph it tried to match, weights and all.
"""

import gc

from onnxscript.rewriter.pattern import PatternMatcher


def forget_graph() -> None:
    """Puts every pattern matcher of the process back to the state of a new one."""
    for matcher in gc.get_objects():
        if issubclass(type(matcher), PatternMatcher):
            fresh = type(matcher)(matcher.pattern)
            vars(matcher).clear()
            vars(matcher).update(vars(fresh))
