"""Messages of torch.distributed between two ranks: send, receive, blocking or not, alone or in batches.

As collectives they are seen in PyTorch's dispatcher, once each, from issue to completion. Both ends
count them per peer and tag, so that they are matched. Of a receive from anybody the sender is known
when somebody has waited for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch.distributed as dist

from tracelens_instrument.clock import now
from tracelens_instrument.hooks import torch_buckets
from tracelens_instrument.hooks.base import say_failed
from tracelens_instrument.hooks.torch_flight import Flight
from tracelens_instrument.hooks.torch_groups import Group, group_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

__all__ = ["MESSAGES"]


@dataclass(frozen=True)
class _Call:
    """An operator's arguments: one tensor, the group, the peer in the group, and the tag."""

    tensor: torch.Tensor
    group: Group
    peer: int
    tag: int


class _FromAnybody(Flight):
    """A receive whose sender is not known before it has come."""

    __slots__ = ("_call", "_span", "_start_ns")

    def __init__(self, call: _Call) -> None:
        self._span = call.group.span_on_host("recv", "recv")
        super().__init__(self._span.begin(call.group.messages, nbytes=call.tensor.nbytes))
        self._call = call
        self._start_ns = now()

    def issued(self, result: Any) -> None:
        """Wait for somebody to wait for it: nothing else says who has sent it."""
        try:
            self.end_by_waiting(dist.Work.unbox(result))
        except Exception as error:  # noqa: BLE001 - the border to the user's training code
            say_failed(self.end_by_waiting, error)

    def waited_for(self, work: Any, *, failed: bool) -> None:
        """Record what came, and from whom."""
        end_ns = now()
        if failed:
            super().waited_for(work, failed=True)
            return
        peer = work._source_rank()  # noqa: SLF001 - as `dist.recv` itself does
        self._token.discard()
        call = self._call
        self._span.complete(
            self._start_ns,
            end_ns,
            call.group.messages,
            nbytes=call.tensor.nbytes,
            seq=call.group.numbers.next("recv", peer, call.tag),
            peer=call.group.ranks[peer],
            key=call.tag,
        )


def _send(args: tuple[Any, ...]) -> Flight:
    return _begin("send", _call(args, args[2], args[3]))


def _receive(args: tuple[Any, ...]) -> Flight:
    return _begin("recv", _call(args, args[2], args[3]))


def _receive_from_anybody(args: tuple[Any, ...]) -> Flight:
    return _FromAnybody(_call(args, -1, args[2]))


def _call(args: tuple[Any, ...], peer: int, tag: int) -> _Call:
    return _Call(args[0][0], group_of(dist.ProcessGroup.unbox(args[1])), peer, tag)


def _begin(op: str, call: _Call) -> Flight:
    group = call.group
    token = group.span_of(op, op, call.tensor).begin(
        group.messages,
        seq=group.numbers.next(op, call.peer, call.tag),
        peer=group.ranks[call.peer],
        key=call.tag,
        nbytes=call.tensor.nbytes,
    )
    return Flight(token)


def _watch(
    begin: Callable[[tuple[Any, ...]], Flight],
) -> Callable[[tuple[Any, ...]], Flight | None]:
    def watch(args: tuple[Any, ...]) -> Flight | None:
        """See a message, unless a communication hook sends it."""
        if torch_buckets.in_users_hook():
            return None
        try:
            return begin(args)
        except Exception as error:  # noqa: BLE001 - the border to the user's training code
            say_failed(begin, error)
            return None

    return watch


MESSAGES: Final = {
    "send": _watch(_send),
    "recv_": _watch(_receive),
    "recv_any_source_": _watch(_receive_from_anybody),
}
