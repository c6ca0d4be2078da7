"""What one replica of any serving system, or one instance of a model in it, takes."""

from dataclasses import dataclass

from specruntime.serving import PrefixCaching


@dataclass(frozen=True, kw_only=True)
class InstanceOptions:
    """`slots` answers at the same time, `queue` requests that may wait; `threads` None: all cores."""

    slots: int = 4
    queue: int = 64
    threads: int | None = None
    prefix_caching: PrefixCaching = "exact"
