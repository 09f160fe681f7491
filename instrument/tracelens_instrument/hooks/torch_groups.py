"""Process groups of torch.distributed as communicators of a trace."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any, Final

import torch.distributed as dist

from tracelens_instrument import recorder
from tracelens_instrument.hooks.torch_device import REDUCTIONS, Placed

if TYPE_CHECKING:
    from tracelens_instrument.device_span import DeviceSpan
    from tracelens_instrument.span import Span

__all__ = ["Group", "group_of"]


class Group:
    """A process group: its communicator, the span of its reductions, and how many there were."""

    def __init__(self, name: str, ranks: list[int], *, queues: bool) -> None:
        communicator = recorder.communicator(ranks, name)
        span = recorder.span("bucket", kind="reduction", op="allreduce", communicator=communicator)
        self._host = span
        self._placed = Placed(span, REDUCTIONS) if queues else None
        self.track = recorder.track("gradient buckets")
        self.next_seq = itertools.count().__next__

    def span_of(self, buffer: Any) -> Span | DeviceSpan:
        """Return the handle for the reduction of a buffer."""
        return self._host if self._placed is None else self._placed.at(buffer)


_GROUPS: Final[weakref.WeakKeyDictionary[dist.ProcessGroup, Group]] = weakref.WeakKeyDictionary()


def group_of(process_group: dist.ProcessGroup) -> Group:
    """Return what is known of `process_group`, without keeping it alive."""
    group = _GROUPS.get(process_group)
    if group is None:
        ranks = dist.get_process_group_ranks(process_group)
        group = _GROUPS[process_group] = Group(
            f"torch {process_group.group_name}", ranks, queues=queues_only(process_group)
        )
    return group


def queues_only(process_group: dist.ProcessGroup) -> bool:
    """Tell whether reductions on devices are over, for the host, as soon as they are queued: by NCCL.

    With gloo, also tensors on devices are reduced by the host, which sees the end itself.
    """
    return "cuda:nccl" in dist.get_backend_config(process_group)
