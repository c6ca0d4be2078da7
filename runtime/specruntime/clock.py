"""The one clock of runtime and build side: phases of a round, deadlines and measurements read it as `clock.now()`.

It is looked up in this module at every reading, so replacing `now` here replaces the time of all of them: tests
replace it, and their outcome does not depend on the speed of a machine. Timers of sockets are those of the event loop.
"""

from collections.abc import Callable
from time import perf_counter

# Monotonic seconds from an arbitrary beginning, time spent asleep included.
now: Callable[[], float] = perf_counter
