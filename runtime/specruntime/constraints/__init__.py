"""Constraints on the form of an answer: JSON schemas, regular expressions, choices and grammars, compiled for a bundle.

    params -> grammar -> compiled (cached) -> matcher -> Constraint of one answer

Needs the extra `structured` (llguidance), imported when the first constraint is compiled.
"""

from specruntime.constraints.compiler import Compiler

__all__ = ["Compiler"]
