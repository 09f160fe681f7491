"""Process groups of torch.distributed as communicators of a trace."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any, Final

import torch.distributed as dist

from tracelens_instrument import recorder
from tracelens_instrument.hooks.base import note_attached
from tracelens_instrument.hooks.messages import MessageNumbers
from tracelens_instrument.hooks.torch_device import REDUCTIONS, Placed

if TYPE_CHECKING:
    from tracelens_instrument.device_span import DeviceSpan
    from tracelens_instrument.span import Span

__all__ = ["Group", "group_of"]


class Group:
    """A process group: its communicator, the spans of what it does, and how many there were.

    `ranks` are the global ranks of its members.
    """

    def __init__(self, name: str, ranks: list[int], *, queues: bool) -> None:
        self._communicator = recorder.communicator(ranks, name)
        self.ranks = ranks
        self._queues = queues
        self._spans: dict[str, tuple[Span, Placed | None]] = {}
        self.buckets = recorder.track("gradient buckets")
        self.collectives = recorder.track("collectives")
        self.messages = recorder.track("messages")
        self.next_seq = itertools.count().__next__
        self.numbers = MessageNumbers()

    def span_of(self, name: str, op: str, tensor: Any) -> Span | DeviceSpan:
        """Return the handle for an operation on a tensor, which stands for all that it works on."""
        span, placed = self._known(name, op)
        return span if placed is None else placed.at(tensor)

    def span_on_host(self, name: str, op: str) -> Span:
        """Return the handle for an operation whose end the host sees, whatever it works on."""
        return self._known(name, op)[0]

    def _known(self, name: str, op: str) -> tuple[Span, Placed | None]:
        known = self._spans.get(name)
        if known is None:
            span = recorder.span(name, kind="reduction", op=op, communicator=self._communicator)
            placed = Placed(span, REDUCTIONS) if self._queues else None
            known = self._spans[name] = (span, placed)
        return known


_GROUPS: Final[weakref.WeakKeyDictionary[dist.ProcessGroup, Group]] = weakref.WeakKeyDictionary()


def group_of(process_group: dist.ProcessGroup) -> Group:
    """Return what is known of `process_group`, without keeping it alive."""
    group = _GROUPS.get(process_group)
    if group is None:
        recorder.identify(dist.get_rank(), dist.get_world_size())
        ranks = dist.get_process_group_ranks(process_group)
        if process_group is dist.group.WORLD:
            note_attached(f"process group of {len(ranks)} ranks")
        group = _GROUPS[process_group] = Group(
            f"torch {process_group.group_name}", ranks, queues=queues_only(process_group)
        )
    return group


def queues_only(process_group: dist.ProcessGroup) -> bool:
    """Tell whether reductions on devices are over, for the host, as soon as they are queued: by NCCL.

    With gloo, also tensors on devices are reduced by the host, which sees the end itself.
    """
    return "cuda:nccl" in dist.get_backend_config(process_group)
