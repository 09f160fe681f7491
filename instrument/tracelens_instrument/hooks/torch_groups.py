"""Process groups of torch.distributed as communicators of a trace."""

from __future__ import annotations

import itertools
import weakref
from typing import Final

import torch.distributed as dist

from tracelens_instrument import recorder
from tracelens_instrument.hooks.torch_device import REDUCTIONS, Placed

__all__ = ["Group", "group_of"]


class Group:
    """A process group: its communicator, the span of its reductions, and how many there were."""

    def __init__(self, name: str, ranks: list[int]) -> None:
        communicator = recorder.communicator(ranks, name)
        span = recorder.span("bucket", kind="reduction", op="allreduce", communicator=communicator)
        self.span = Placed(span, REDUCTIONS)
        self.track = recorder.track("gradient buckets")
        self.next_seq = itertools.count().__next__


_GROUPS: Final[weakref.WeakKeyDictionary[dist.ProcessGroup, Group]] = weakref.WeakKeyDictionary()


def group_of(process_group: dist.ProcessGroup) -> Group:
    """Return what is known of `process_group`, without keeping it alive."""
    group = _GROUPS.get(process_group)
    if group is None:
        ranks = dist.get_process_group_ranks(process_group)
        group = _GROUPS[process_group] = Group(f"torch {process_group.group_name}", ranks)
    return group
