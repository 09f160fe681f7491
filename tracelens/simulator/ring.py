"""Reductions as rings of point-to-point messages, so that each link has a pace of its own.

In each of its 2 (n - 1) hops every rank sends a part of the payload to the next rank and takes one from
the rank before, in one call: a message goes when both ends are in it, and a rank goes on when both of
its messages are through. So a slow link slows all ranks, but only its own messages take long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.simulator import durations
from tracelens.simulator.sheet import WORLD_UID

if TYPE_CHECKING:
    from tracelens.simulator.durations import Nanoseconds
    from tracelens.simulator.scenario import Scenario
    from tracelens.simulator.sheet import Sheet


class Ring:
    """Plays the reductions of a scenario hop by hop, and keeps when each was."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._pace = durations.links(scenario)
        self._count = max(2 * (scenario.ranks - 1), 1)
        shape = (scenario.steps, scenario.ranks, scenario.buckets, self._count)
        self._begin, self._end = (np.zeros(shape, np.int64) for _ in range(2))

    def play(
        self, step: int, enter: Nanoseconds, transfers: Nanoseconds, skews: Nanoseconds
    ) -> Nanoseconds:
        """Return when each rank leaves each bucket's reduction, [rank, bucket]."""
        leave = np.empty_like(enter)
        blocking = not self._scenario.overlap
        free = enter[:, 0]
        for bucket, transfer in enumerate(transfers):
            lasting = np.rint(transfer / self._count * self._pace[step]).astype(np.int64)
            now = free if blocking else np.maximum(enter[:, bucket], free)
            for hop in range(self._count):
                through = np.maximum(now, np.roll(now, -1)) + lasting
                self._begin[step, :, bucket, hop] = now
                now = np.maximum(through, np.roll(through, 1))
                self._end[step, :, bucket, hop] = now
            free = leave[:, bucket] = now + skews[bucket]
        return leave

    def record(self, sheet: Sheet, place: dict[str, Any]) -> None:
        """Add both messages of every hop, within the reduction's span."""
        scenario = self._scenario
        rank, steps = np.arange(scenario.ranks), np.arange(scenario.steps)[:, None]
        right, left = (rank + 1) % scenario.ranks, (rank - 1) % scenario.ranks
        place = place | {"depth": place["depth"] + 1, "kind": "reduction", "key": 0}
        for bucket, nbytes in enumerate(scenario.bytes_of_buckets):
            for hop in range(self._count):
                seq = (steps * scenario.buckets + bucket) * self._count + hop
                columns = {"communicator": WORLD_UID, "seq": seq, "bytes": nbytes // scenario.ranks}
                begin, end = (times[..., bucket, hop] for times in (self._begin, self._end))
                for op, peer in (("send", right), ("recv", left)):
                    sheet.spans(begin, end, name="Sendrecv", op=op, peer=peer, **columns, **place)
