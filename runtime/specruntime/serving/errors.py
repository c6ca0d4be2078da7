"""Why a request got no answer, or only the beginning of one, though nothing is wrong with it or the engine."""

from specruntime.errors import SpecError


class QueueFull(SpecError):
    """As many requests wait as may wait; try again later."""


class Draining(SpecError):
    """The scheduler takes no new requests: it is being shut down, or has no slot that works."""


class DeadlinePassed(SpecError, TimeoutError):
    """The request's time was over before its answer ended."""


class Cancelled(SpecError):
    """Whoever asked does not want the answer any more."""
