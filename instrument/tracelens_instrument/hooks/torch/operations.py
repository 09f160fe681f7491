"""Operations of torch.distributed, from all callers: collectives, messages, and waiting for them.

They are seen where all of them pass, in PyTorch's dispatcher: each, whether Python,
DistributedDataParallel's C++ or a compiled graph issues it, is an operator of the library ``c10d``. A
kernel of ours stands before the backend's own, sees what is issued, and hands it on as it is. So nothing
about the operation changes, least of all its results: there is no communication hook, for which
DistributedDataParallel would average in a pass of its own.

Each is seen once: as a gradient bucket, if DistributedDataParallel issues it in a backward pass; not at
all inside of a communication hook, whose bucket is recorded; else as itself. Both ends of messages count
them per peer and tag, so that they are matched. Of a receive from anybody the sender is known when
the program has waited for it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
import torch.distributed as dist
import wrapt
from torch import library
from torch._C import DispatchKey

from tracelens.schema.record import NO_BYTES
from tracelens_instrument import recorder
from tracelens_instrument.core.clock import now
from tracelens_instrument.core.failures import warn_once
from tracelens_instrument.core.state import STATE
from tracelens_instrument.hooks.base import Switch, attempt, warn_failed
from tracelens_instrument.hooks.torch import backward, buckets
from tracelens_instrument.hooks.torch.process_groups import Flight, Group, end_waited_for, group_of
from tracelens_instrument.hooks.torch.steps import IMPLICIT_STEPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = [
    "COLLECTIVES",
    "MESSAGES",
    "Collective",
    "Issue",
    "Watch",
    "install",
    "install_kernels",
    "resume_kernels",
    "suspend_kernels",
]


# What PyTorch passes through by default on its way to a backend, after autograd.
_DISPATCH_KEY: Final = "BackendSelect"
_WAIT: Final = recorder.span("wait for collectives", kind="wait")


class Issue(Protocol):
    """An operation that is about to be issued, and a callback at its end."""

    def on_issued(self, result: Any) -> object:
        """Called with what the operator returned."""

    def on_refused(self) -> object:
        """Called when it raised."""


class Watch(Protocol):
    """What inspects an operator; called from the kernel, whose caller is the issuer."""

    def __call__(self, args: tuple[Any, ...], /) -> Issue | None:
        """Inspect the arguments of an operator; None: its end does not matter."""


class _Dispatcher:
    """Our kernels, and PyTorch's handle that puts them before its own; None while they are not there."""

    def __init__(self) -> None:
        self.kernels: dict[str, Callable[..., Any]] = {}
        self.library: Any = None

    def resume(self) -> None:
        buckets.resume()
        if self.library is None:
            self.library = library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]  # it has no types
            for name, kernel in self.kernels.items():
                self.library.impl(name, kernel, _DISPATCH_KEY, with_keyset=True)

    def suspend(self) -> None:
        buckets.suspend()
        ours, self.library = self.library, None
        if ours is not None:
            ours._destroy()  # noqa: SLF001 - else it lasts until it is collected


_DISPATCHER: Final = _Dispatcher()


def install_kernels(watches: Mapping[str, Watch]) -> None:
    """Call each of `watches` with the arguments of the operator of that name, before it is issued."""
    if _DISPATCHER.kernels:
        return
    try:
        _DISPATCHER.kernels = {name: _make_kernel(name, watch) for name, watch in watches.items()}
        _DISPATCHER.resume()
    except Exception as error:  # noqa: BLE001 - whatever another PyTorch lacks, the training goes on
        warn_once(f"collectives of this PyTorch ({torch.__version__}) are not recorded ({error!r})")


def suspend_kernels() -> None:
    """Remove our kernels from the dispatcher until `resume_kernels`."""
    _DISPATCHER.suspend()


def resume_kernels() -> None:
    """Put our kernels in front of the operators again."""
    _DISPATCHER.resume()


def _make_kernel(name: str, watch: Watch) -> Callable[..., Any]:
    """Make the kernel that lets `watch` see operator `name`, and calls the next kernel, of PyTorch."""
    operator = getattr(torch.ops.c10d, name).default
    handle = getattr(operator, "_handle", None)  # `operator.redispatch` would only call its method
    call_next = getattr(handle, "redispatch_boxed", operator.redispatch)
    lower_keys = torch._C._dispatch_keyset_full_after(getattr(DispatchKey, _DISPATCH_KEY))  # noqa: SLF001 - see install

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the next kernel, of the lower dispatch keys; let `issue` know of its result."""
        issue = None
        if STATE.segment is not None or STATE.waiting is not None:
            issue = watch(args)
        if issue is None:
            return call_next(keys & lower_keys, *args, **kwargs)
        try:
            result = call_next(keys & lower_keys, *args, **kwargs)
        except BaseException:
            issue.on_refused()
            raise
        issue.on_issued(result)
        return result

    return kernel


@dataclass(frozen=True)
class _Call:
    """An operator's arguments: one tensor, the group, the peer in the group, and the tag."""

    tensor: torch.Tensor
    group: Group
    peer_in_group: int
    tag: int


class _FromAnyRank(Flight):
    """A receive whose sender is not known before it completes."""

    __slots__ = ("_call", "_span", "_start_ns")

    def __init__(self, call: _Call) -> None:
        self._span = call.group.span_on_host("recv", "recv")
        super().__init__(
            self._span.begin(call.group.message_track, nbytes=call.tensor.nbytes), call.group
        )
        self._call = call
        self._start_ns = now()

    def on_issued(self, result: Any) -> None:
        """Defer until the program waits for it: only then is the sender known."""
        try:
            self.end_by_waiting(dist.Work.unbox(result))
        except Exception as error:  # noqa: BLE001 - the border to the user's training code
            warn_failed(self.end_by_waiting, error)

    def on_waited(self, work: Any, *, failed: bool) -> None:
        """Record what was received, and from which rank; the span without a sender is removed."""
        end_ns = now()
        if failed:
            super().on_waited(work, failed=True)
            return
        peer_in_group = work._source_rank()  # noqa: SLF001 - in the group, as `dist.recv` itself does
        self._span_token.discard()
        call = self._call
        self._span.complete(
            self._start_ns,
            end_ns,
            call.group.message_track,
            nbytes=call.tensor.nbytes,
            seq=call.group.message_numbers.next_number("recv", peer_in_group, call.tag),
            peer=call.group.global_ranks[peer_in_group],
            key=call.tag,
        )


def _begin_send(args: tuple[Any, ...]) -> Flight:
    return _begin_message("send", _call_of(args, args[2], args[3]))


def _begin_receive(args: tuple[Any, ...]) -> Flight:
    return _begin_message("recv", _call_of(args, args[2], args[3]))


def _begin_receive_from_any(args: tuple[Any, ...]) -> Flight:
    return _FromAnyRank(_call_of(args, peer_in_group=-1, tag=args[2]))


def _call_of(args: tuple[Any, ...], peer_in_group: int, tag: int) -> _Call:
    return _Call(args[0][0], group_of(dist.ProcessGroup.unbox(args[1])), peer_in_group, tag)


def _begin_message(op: str, call: _Call) -> Flight:
    """Begin the span of a message (`op`: send or recv), numbered among those of this peer and tag."""
    group = call.group
    token = group.span_of(op, op, call.tensor).begin(
        group.message_track,
        seq=group.message_numbers.next_number(op, call.peer_in_group, call.tag),
        peer=group.global_ranks[call.peer_in_group],
        key=call.tag,
        nbytes=call.tensor.nbytes,
    )
    return Flight(token, group)


def _watch_message(
    begin: Callable[[tuple[Any, ...]], Flight],
) -> Callable[[tuple[Any, ...]], Flight | None]:
    """Return `begin`, which begins the span of a message, made safe for the user's training code."""

    def watch(args: tuple[Any, ...]) -> Flight | None:
        """See a message, unless a communication hook sends it."""
        if buckets.in_users_hook():
            return None
        try:
            IMPLICIT_STEPS.note_message_begin()
            return begin(args)
        except Exception as error:  # noqa: BLE001 - the border to the user's training code
            warn_failed(begin, error)
            return None

    return watch


MESSAGES: Final = {
    "send": _watch_message(_begin_send),
    "recv_": _watch_message(_begin_receive),
    "recv_any_source_": _watch_message(_begin_receive_from_any),
}

_INSTALLED: Final = Switch()


@dataclass(frozen=True)
class Collective:
    """An operator of PyTorch's library ``c10d``: its public name, and which parameter is the payload."""

    name: str
    op: str
    payload: str | None = None


COLLECTIVES: Final = {
    "allreduce_": Collective("all_reduce", "allreduce", "tensors"),
    "allreduce_coalesced_": Collective("all_reduce_coalesced", "allreduce", "tensors"),
    "broadcast_": Collective("broadcast", "broadcast", "tensors"),
    "reduce_": Collective("reduce", "reduce", "tensors"),
    "allgather_": Collective("all_gather", "all_gather", "input_tensors"),
    "_allgather_base_": Collective("all_gather_into_tensor", "all_gather", "input_tensor"),
    "allgather_coalesced_": Collective("all_gather_coalesced", "all_gather", "input_list"),
    "allgather_into_tensor_coalesced_": Collective(
        "all_gather_into_tensor", "all_gather", "inputs"
    ),
    "gather_": Collective("gather", "gather", "input_tensors"),
    "scatter_": Collective("scatter", "scatter", "output_tensors"),
    "reduce_scatter_": Collective("reduce_scatter", "reduce_scatter", "input_tensors"),
    "_reduce_scatter_base_": Collective("reduce_scatter_tensor", "reduce_scatter", "input_tensor"),
    "reduce_scatter_tensor_coalesced_": Collective(
        "reduce_scatter_tensor", "reduce_scatter", "inputs"
    ),
    "alltoall_": Collective("all_to_all", "all_to_all", "input_tensors"),
    "alltoall_base_": Collective("all_to_all_single", "all_to_all", "input"),
    "barrier": Collective("barrier", "barrier"),
}


def install() -> None:
    """Record every collective that this process issues from now on, and waiting for it."""
    if not _INSTALLED.turn_on_if_off():
        return
    watches: dict[str, Any] = {
        name: _WatchCollective(name, row) for name, row in COLLECTIVES.items()
    }
    watches["allreduce_"] = _watch_bucket_or_collective(watches["allreduce_"])
    install_kernels(watches | MESSAGES)
    wrapt.wrap_function_wrapper("torch.distributed", "Work.wait", _around_wait)


class _WatchCollective:
    """Sees one operator; knows from its schema where its arguments are."""

    def __init__(self, name: str, row: Collective) -> None:
        parameters = [argument.name for argument in _schema_of(name).arguments]
        self._row = row
        self._group = parameters.index("process_group")
        self._payload = None if row.payload is None else parameters.index(row.payload)

    def __call__(self, args: tuple[Any, ...]) -> Flight | None:
        """See what is issued, unless a communication hook does so."""
        if buckets.in_users_hook():
            return None
        try:
            return self._begin(args)
        except Exception as error:  # noqa: BLE001 - the border to the user's training code
            warn_failed(self._begin, error)
            return None

    def _begin(self, args: tuple[Any, ...]) -> Flight:
        group = group_of(dist.ProcessGroup.unbox(args[self._group]))
        tensors = [] if self._payload is None else list(_tensors_in(args[self._payload]))
        span = group.span_of(self._row.name, self._row.op, tensors[0] if tensors else None)
        nbytes = sum(map(_payload_bytes, tensors)) if tensors else NO_BYTES
        token = span.begin(group.collective_track, seq=group.next_seq(), nbytes=nbytes)
        return Flight(token, group)


def _watch_bucket_or_collective(
    collective: _WatchCollective,
) -> Callable[[tuple[Any, ...]], Flight | None]:
    """See an allreduce: by DDP, if no Python code is between it and the engine."""

    def watch(args: tuple[Any, ...]) -> Flight | None:
        caller = sys._getframe(1).f_back  # noqa: SLF001 - no other way
        if (caller is None or caller.f_code in backward.ENGINE) and buckets.is_gradient(args[0]):
            return buckets.see_bucket(args)
        return collective(args)

    return watch


def _schema_of(name: str) -> Any:
    return getattr(torch.ops.c10d, name).default._schema  # noqa: SLF001 - nothing public has it


def _tensors_in(payload: Any) -> Iterator[torch.Tensor]:
    """Find the tensors of an argument: bare, in a list, or in lists of lists."""
    if isinstance(payload, torch.Tensor):
        yield payload
    else:
        for part in payload:
            yield from _tensors_in(part)


def _payload_bytes(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_sparse else tensor.nbytes


def _around_wait(
    wait: Callable[..., Any], work: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wait for a work in a span, in which also the work's span ends if nothing else ends it."""
    failed = True
    with _WAIT:
        try:
            result = wait(*args, **kwargs)
            failed = False
        finally:
            attempt(end_waited_for, work, failed=failed)
    return result
