"""Collects what the library says while it works.

Owns the subclasses of the library's callback types: its logger and its progress monitor. Knows nothing of what is
being built.
"""

from dataclasses import dataclass, field
from typing import Any

from specexport.context import Progress


@dataclass
class Journal:
    """Messages by severity, in order. `logger` is passed to the library and must outlive what it is given to."""

    logger: Any
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    information: list[str] = field(default_factory=list)
    layers: str = ""  # the engine's own layer listing

    def number(self, label: str) -> int | None:
        """Return the integer after `label` in an information line ("Total Weights Memory: 2886656 bytes")."""
        for message in reversed(self.information):
            _, found, rest = message.partition(label)
            if found:
                digits = rest.strip().split(" ")[0]
                return int(digits) if digits.isdigit() else None
        return None


def open_journal(trt: Any) -> Journal:
    """Return a journal whose logger listens to everything the library says."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                journal.errors.append(message)
            elif severity == trt.ILogger.WARNING:
                journal.warnings.append(message)
            elif severity == trt.ILogger.INFO:
                journal.information.append(message)
            elif message.startswith("Layers:"):
                journal.layers = message

    journal = Journal(Logger())
    return journal


def open_monitor(trt: Any, progress: Progress) -> Any:
    """Return a progress monitor that reports the outermost phase.

    An exception in `progress` stops the build and is kept in `.error`.
    """

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.error: BaseException | None = None
            self._outermost: tuple[str, int] | None = None

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            if not parent_phase:
                self._outermost = (phase_name, num_steps)
                self._report(0)

        def step_complete(self, phase_name: str, step: int) -> bool:
            if self._outermost is not None and self._outermost[0] == phase_name:
                self._report(step + 1)
            return self.error is None

        def phase_finish(self, phase_name: str) -> None:
            if self._outermost is not None and self._outermost[0] == phase_name:
                self._report(self._outermost[1])

        def _report(self, done: int) -> None:
            assert self._outermost is not None
            try:
                progress(self._outermost[0], done, self._outermost[1])
            except BaseException as error:  # crosses a C++ frame: kept here, raised by the caller
                self.error = error

    return Monitor()
