"""Collectives of torch.distributed, whoever issues them, and waiting for them.

Each is seen once, in PyTorch's dispatcher: as a gradient bucket, if DistributedDataParallel issues it
in a backward pass; not at all inside of a communication hook, whose bucket is recorded; else as itself.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
import wrapt

from tracelens.schema.record import NO_BYTES
from tracelens_instrument import recorder
from tracelens_instrument.hooks import torch_backward, torch_buckets, torch_dispatch
from tracelens_instrument.hooks.base import attempt, say_failed
from tracelens_instrument.hooks.torch_flight import Flight, waited_for
from tracelens_instrument.hooks.torch_groups import group_of
from tracelens_instrument.hooks.torch_messages import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["COLLECTIVES", "Collective", "install"]

_WAIT: Final = recorder.span("wait for collectives", kind="wait")
_installed: Final[list[bool]] = []


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
    if _installed:
        return
    _installed.append(True)
    watch: dict[str, Any] = {name: _Watch(name, row) for name, row in COLLECTIVES.items()}
    watch["allreduce_"] = _bucket_or_itself(watch["allreduce_"])
    torch_dispatch.install(watch | MESSAGES)
    wrapt.wrap_function_wrapper("torch.distributed", "Work.wait", _around_wait)


class _Watch:
    """Sees one operator; knows from its schema where its arguments are."""

    def __init__(self, name: str, row: Collective) -> None:
        parameters = [argument.name for argument in _schema_of(name).arguments]
        self._row = row
        self._group = parameters.index("process_group")
        self._payload = None if row.payload is None else parameters.index(row.payload)

    def __call__(self, args: tuple[Any, ...]) -> Flight | None:
        """See what is issued, unless a communication hook does so."""
        if torch_buckets.in_users_hook():
            return None
        try:
            return self._begin(args)
        except Exception as error:  # noqa: BLE001 - the border to the user's training code
            say_failed(self._begin, error)
            return None

    def _begin(self, args: tuple[Any, ...]) -> Flight:
        group = group_of(dist.ProcessGroup.unbox(args[self._group]))
        tensors = [] if self._payload is None else list(_tensors(args[self._payload]))
        span = group.span_of(self._row.name, self._row.op, tensors[0] if tensors else None)
        nbytes = sum(map(_bytes, tensors)) if tensors else NO_BYTES
        token = span.begin(group.collectives, seq=group.next_seq(), nbytes=nbytes)
        return Flight(token)


def _bucket_or_itself(itself: _Watch) -> Callable[[tuple[Any, ...]], Flight | None]:
    """See an allreduce: by DDP, if no Python code is between it and the engine."""

    def watch(args: tuple[Any, ...]) -> Flight | None:
        caller = sys._getframe(1).f_back  # noqa: SLF001 - no other way
        if torch_backward.runs_below(caller) and torch_buckets.is_gradient(args[0]):
            return torch_buckets.see(args)
        return itself(args)

    return watch


def _schema_of(name: str) -> Any:
    return getattr(torch.ops.c10d, name).default._schema  # noqa: SLF001 - nothing public has it


def _tensors(payload: Any) -> Iterator[torch.Tensor]:
    """Find the tensors of an argument: bare, in a list, or in lists of lists."""
    if isinstance(payload, torch.Tensor):
        yield payload
    else:
        for part in payload:
            yield from _tensors(part)


def _bytes(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_sparse else tensor.nbytes


def _around_wait(
    wait: Callable[..., Any], work: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    failed = True
    try:
        with _WAIT:
            done = wait(*args, **kwargs)
        failed = False
    finally:
        attempt(waited_for, work, failed=failed)
    return done
