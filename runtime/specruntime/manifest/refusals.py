"""Refusing a bundle: the error for a manifest whose keys disagree, and what to do about a broken bundle."""

from specruntime.errors import BundleInvalid

REBUILD = "copy the bundle again or build it again"


def refuse(problem: str) -> None:
    """Raise `BundleInvalid` for a disagreement between keys of the manifest."""
    raise BundleInvalid(f"the manifest contradicts itself: {problem}; {REBUILD}")
