"""Several sessions on one launch: lanes that each look like a context of their own, and who launches when.

    session -> lane.run(window) -> all lanes wait -> launches -> every lane goes on

`turns` lets lanes wait, `launches` decides what runs together, `lanes` stages and hands back, `batch` drives them.
"""

from specruntime.batches.batch import Batch
from specruntime.batches.lanes import Lane, LaneGroup

__all__ = ["Batch", "Lane", "LaneGroup"]
