"""Horovod on PyTorch: its reductions, from when they are handed in until the program has them back.

Horovod's own thread runs them, in an order of its own; Python hears of the end of one when it asks. So a
reduction's end is when `synchronize` returned it. All ranks name their tensors alike, by which Horovod
itself matches them, and so do we: each tensor has a communicator, whose calls are counted.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import wrapt

from tracelens_instrument import recorder
from tracelens_instrument.core.attachments import note_attached
from tracelens_instrument.hooks.base import attempt

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens_instrument.core.spans import Span, Token

__all__ = ["install"]

# Operations by the functions that hand them in; the blocking forms call these.
_OPS: Final = {
    "allreduce_async": "allreduce",
    "allreduce_async_": "allreduce",
    "grouped_allreduce_async": "allreduce",
    "grouped_allreduce_async_": "allreduce",
    "allgather_async": "all_gather",
    "broadcast_async": "broadcast",
    "broadcast_async_": "broadcast",
    "reducescatter_async": "reduce_scatter",
    "alltoall_async": "all_to_all",
}
_TRACK: Final = "Horovod"

_in_flight: Final[dict[int, Token]] = {}
_spans: Final[dict[tuple[str, str], Span]] = {}
_call_counts: Final[Counter[tuple[str, str]]] = Counter()
_unnamed_counts: Final[Counter[str]] = Counter()


def install(_horovod: Any) -> None:
    """Record what is reduced by Horovod, its optimizer included."""
    _wrap_everywhere("init", _around_init)
    if recorder.detail() == "step":
        return
    for name, op in _OPS.items():
        _wrap_everywhere(name, _around_issuing(op))
    _wrap_everywhere("synchronize", _around_synchronize)
    for kind in ("_DistributedOptimizer", "_DistributedAdasumOptimizer"):
        wrapt.wrap_function_wrapper(
            "horovod.torch.optimizer", f"{kind}.synchronize", _around_optimizer_synchronize
        )


def _wrap_everywhere(name: str, wrapper: Callable[..., Any]) -> None:
    """Put a wrapper around a function of Horovod, wherever it was imported to."""
    original = getattr(sys.modules["horovod.torch.mpi_ops"], name, None)
    if original is None:
        return  # this version has none
    wrapped = wrapt.FunctionWrapper(original, wrapper)
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("horovod.torch") and getattr(module, name, None) is original:
            setattr(module, name, wrapped)


def _around_init(wrapped: Any, _instance: Any, args: Any, kwargs: Any) -> Any:
    value = wrapped(*args, **kwargs)
    attempt(_identify)
    return value


def _identify() -> None:
    operations = sys.modules["horovod.torch.mpi_ops"]
    size = operations.size()
    recorder.identify(operations.rank(), size, operations.local_rank())
    note_attached(f"Horovod with {size} ranks")


def _around_issuing(op: str) -> Callable[..., Any]:
    """Make the wrapper of a function that hands in an operation, `op`, and returns its handle."""

    def issue(wrapped: Any, _instance: Any, args: Any, kwargs: Any) -> Any:
        """Begin a span, which ends when the program synchronizes with the handle returned."""
        token = attempt(_begin_reduction, op, args, kwargs)  # None if that failed
        try:
            handle = wrapped(*args, **kwargs)
        except BaseException:
            if token is not None:
                token.discard()
            raise
        if token is not None:
            _in_flight[handle] = token
        return handle

    return issue


def _begin_reduction(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Token:
    """Begin a span, numbered among those of the same operation and name: Horovod matches them so."""
    payload = args[0] if args else kwargs.get("tensor", kwargs.get("tensors", ()))
    tensors = payload if isinstance(payload, (list, tuple)) else (payload,)
    name = kwargs.get("name") or _next_default_name(op)
    key = op, name
    seq = _call_counts[key]
    _call_counts[key] += 1
    span = _spans.get(key) or _spans.setdefault(key, _make_span(op, name))
    nbytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return span.begin(recorder.track(_TRACK), seq=seq, nbytes=nbytes)


def _make_span(op: str, name: str) -> Span:
    """Make the handle for a tensor, with a communicator of its own."""
    size = sys.modules["horovod.torch.mpi_ops"].size()
    communicator = recorder.communicator(range(size), f"Horovod {op} {name}")
    return recorder.span(name, kind="reduction", op=op, communicator=communicator)


def _next_default_name(op: str) -> str:
    """Name a tensor as Horovod does: by its order of issue, which is the same on every rank."""
    _unnamed_counts[op] += 1
    return f"{op}.noname.{_unnamed_counts[op]}"


def _around_synchronize(wrapped: Any, _instance: Any, args: Any, kwargs: Any) -> Any:
    value = wrapped(*args, **kwargs)
    token = _in_flight.pop(args[0] if args else kwargs.get("handle"), None)
    if token is not None:
        token.end()
    return value


def _around_optimizer_synchronize(wrapped: Any, _instance: Any, args: Any, kwargs: Any) -> Any:
    """Set the optimizer's waiting apart from the update in which it happens."""
    with recorder.span("synchronize", kind="wait"):
        return wrapped(*args, **kwargs)
