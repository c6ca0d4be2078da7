"""Many requests over one bundle: slots, a bounded queue, turns, and streams of what they deliver.

    submit -> queue -> admit -> turn, turn, ... -> evict

A `Stepper` owns the engine's side (slots, chunks of prompts, rounds); the `Scheduler` owns requests, their order and
their ends. Importing this loads no engine library and no server.
"""

from specruntime.serving.batch_stepper import BatchStepper, stepper_for
from specruntime.serving.events import (
    Author,
    Cancelled,
    DeadlinePassed,
    Delivery,
    Draining,
    Event,
    Failure,
    Figures,
    QueueFull,
)
from specruntime.serving.prefixes import PrefixCaching
from specruntime.serving.scheduler import Occupancy, Scheduler, Ticket, Totals
from specruntime.serving.session_stepper import SessionStepper
from specruntime.serving.stepper import Stepper, Turn, Work, works_of
from specruntime.serving.streams import AsyncStream, AsyncStreams, Stream, collect

__all__ = [
    "AsyncStream",
    "AsyncStreams",
    "Author",
    "BatchStepper",
    "Cancelled",
    "DeadlinePassed",
    "Delivery",
    "Draining",
    "Event",
    "Failure",
    "Figures",
    "Occupancy",
    "PrefixCaching",
    "QueueFull",
    "Scheduler",
    "SessionStepper",
    "Stepper",
    "Stream",
    "Ticket",
    "Totals",
    "Turn",
    "Work",
    "collect",
    "stepper_for",
    "works_of",
]
