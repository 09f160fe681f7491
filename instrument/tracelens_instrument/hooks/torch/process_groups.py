"""Process groups of torch.distributed as communicators of a trace, and what they have in flight."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any, Final

import torch.distributed as dist

from tracelens_instrument import recorder
from tracelens_instrument.core.attachments import note_attached
from tracelens_instrument.hooks.base import MessageNumbers, warn_failed
from tracelens_instrument.hooks.torch.devices import REDUCTIONS, Placed, QueuedEnds

if TYPE_CHECKING:
    from tracelens_instrument.core.spans import Span, Token
    from tracelens_instrument.device.spans import DeviceSpan, DeviceToken

__all__ = ["Flight", "Group", "end_waited_for", "group_of", "queues_only"]
_GROUP_BY_ID: Final[dict[int, tuple[weakref.ref[dist.ProcessGroup], Group]]] = {}  # by id
_unbox_work: Final = dist.Work.unbox
_MOST_ENDED_BY_WAITING: Final = 256


class Group:
    """A process group: its communicator, the spans of its operations, and their number.

    `global_ranks` are those of its members.
    """

    def __init__(self, name: str, ranks: list[int], *, queues_on_device: bool) -> None:
        """Name the communicator; `queues_on_device`: for the host, operations are over once queued."""
        self._communicator_id = recorder.communicator(ranks, name)
        self.global_ranks = ranks
        self.queued_ends = QueuedEnds() if queues_on_device else None
        self._spans_by_name: dict[str, tuple[Span, Placed | None]] = {}
        self.bucket_track = recorder.track("gradient buckets")
        self.collective_track = recorder.track("collectives")
        self.message_track = recorder.track("messages")
        self.next_seq = itertools.count().__next__
        self.message_numbers = MessageNumbers()

    def span_of(self, name: str, op: str, tensor: Any) -> Span | DeviceSpan:
        """Return the handle for an operation on the device of a tensor."""
        span, placed = self._spans_by_name.get(name) or self._find_span(name, op)
        return span if placed is None else placed.handle_for(tensor)

    def span_on_host(self, name: str, op: str) -> Span:
        """Return the handle for an operation whose end the host sees, on any device."""
        return self._find_span(name, op)[0]

    def _find_span(self, name: str, op: str) -> tuple[Span, Placed | None]:
        span_and_placed = self._spans_by_name.get(name)
        if span_and_placed is None:
            span = recorder.span(name, kind="reduction", op=op, communicator=self._communicator_id)
            placed = None if self.queued_ends is None else Placed(span, REDUCTIONS)
            span_and_placed = self._spans_by_name[name] = (span, placed)
        return span_and_placed


def group_of(process_group: dist.ProcessGroup) -> Group:
    """Return the recorded group of `process_group`, without keeping that alive."""
    entry = _GROUP_BY_ID.get(id(process_group))
    if entry is not None:
        reference, group = entry
        if reference() is process_group:  # else the id is that of an object that is gone
            return group
    recorder.identify(dist.get_rank(), dist.get_world_size())
    ranks = dist.get_process_group_ranks(process_group)
    if process_group is dist.group.WORLD:
        note_attached(f"process group of {len(ranks)} ranks")
    name = f"torch {process_group.group_name}"
    group = Group(name, ranks, queues_on_device=queues_only(process_group))
    _GROUP_BY_ID[id(process_group)] = weakref.ref(process_group, _forget_group), group
    return group


def _forget_group(dropped: weakref.ref[dist.ProcessGroup]) -> None:
    for key, (known, _) in list(_GROUP_BY_ID.items()):
        if known is dropped:
            del _GROUP_BY_ID[key]


def queues_only(process_group: dist.ProcessGroup) -> bool:
    """Return True if reductions on devices are over, for the host, as soon as they are queued: by NCCL.

    With gloo, also tensors on devices are reduced by the host, which sees the end itself.
    """
    return "cuda:nccl" in dist.get_backend_config(process_group)


class Flight:
    """Ends its span in the thread that completes the operation.

    With NCCL an operation is over for the host as soon as it is queued (`QueuedEnds`).
    """

    __slots__ = ("_queued_ends", "_span_token")

    def __init__(self, token: Token | DeviceToken, group: Group) -> None:
        self._span_token = token
        self._queued_ends = group.queued_ends

    def on_issued(self, result: Any) -> None:
        """End the span with the work that an operator returned: `result` is that, or ends with it.

        Without a work it is over, or, with NCCL, queued on the calling thread's stream.
        """
        try:
            boxed_work = result[-1] if isinstance(result, (tuple, list)) else result
            work: Any = _unbox_work(boxed_work)
            if work is None:
                self._span_token.end()
            else:
                self._follow(work)
        except Exception as error:  # noqa: BLE001 - the border to the user's training code
            warn_failed(self._follow, error)

    def on_refused(self) -> None:
        """End now, for nothing was issued."""
        self._span_token.end(failed=True)

    def end_with(self, future: Any) -> None:
        """End with this future, which is left as it is."""
        if self._queued_ends is not None and future.done():
            self._queued_ends.end(self._span_token, future)
        else:
            future.add_done_callback(self._span_token.completed)

    def on_waited(self, _work: Any, *, failed: bool) -> None:
        """Called when the program has waited for it."""
        self._span_token.end(failed=failed)

    def end_by_waiting(self, work: Any) -> None:
        """End when the program has waited for this work."""
        # While it is here, Python knows the work by this object.
        _flights_by_work[id(work)] = (work, self)
        if len(_flights_by_work) > _MOST_ENDED_BY_WAITING:
            _flights_by_work.pop(next(iter(_flights_by_work)), None)

    def _follow(self, work: Any) -> None:
        try:
            future = work.get_future()
        except RuntimeError:  # it has none: gloo completes reduce_scatter and messages by waiting
            self.end_by_waiting(work)
        else:
            self.end_with(future)


_flights_by_work: Final[dict[int, tuple[Any, Flight]]] = {}


def end_waited_for(work: Any, *, failed: bool) -> None:
    """Note that the program has waited for a work, which ends it if nothing else does."""
    _, flight = _flights_by_work.pop(id(work), (None, None))
    if flight is not None:
        flight.on_waited(work, failed=failed)
