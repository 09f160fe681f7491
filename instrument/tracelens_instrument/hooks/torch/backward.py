"""Backward passes: computing gradients, then waiting for the reductions that are still under way.

Computing ends, and waiting begins, where the engine has run through the graph and comes to what is
queued for its end: first our mark, which is queued with the first bucket, then DDP's wait for them.

Inside, each layer's span begins when the gradient of its output is known, and ends where the next
layer's begins: so it holds the layer's gradients and what lies between it and the layer before.
"""

from __future__ import annotations

import threading
from array import array
from typing import TYPE_CHECKING, Any, Final

import torch
import wrapt

from tracelens.schema.record import NO_INDEX
from tracelens_instrument import recorder
from tracelens_instrument.core.clock import now
from tracelens_instrument.core.state import STATE
from tracelens_instrument.hooks.base import attempt, warn_failed
from tracelens_instrument.hooks.torch.devices import Placed
from tracelens_instrument.hooks.torch.steps import IMPLICIT_STEPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens_instrument.core.spans import Span, Token
    from tracelens_instrument.device.spans import DeviceToken

__all__ = ["ENGINE", "NEXT_BUCKET", "bucket_issued", "install", "layer_begins", "operator_begins"]

_BACKPROP: Final = Placed(recorder.span("backprop", kind="backprop"))
_WAIT: Final = recorder.span("wait for reductions", kind="wait")
_queue_callback: Final[Any] = torch.autograd.Variable._execution_engine.queue_callback  # noqa: SLF001 - as DDP does
# What calls code without a frame, such as DDP's, in a backward pass: none of Python, or one of these.
ENGINE: Final = {
    getattr(torch.autograd.graph, "_engine_run_backward", torch.autograd.backward).__code__,
    torch.autograd.backward.__code__,
}


# The number of the next bucket in this pass: what is compiled (`buckets`) counts it up, too.
# Where it is negative our mark is not queued yet, and `bucket_issued` is called.
_NOT_MARKED: Final = -1
NEXT_BUCKET: Final = array("q", [_NOT_MARKED])


class _BackwardPass:
    """One call of backward() on the training thread."""

    def __init__(self, tensors: Any = None, *_args: Any, **_kwargs: Any) -> None:
        """Begin: with what `torch.autograd.backward` is given, whose first tensor says where all are."""
        loss = next(iter(tensors), None) if isinstance(tensors, (list, tuple)) else tensors
        if STATE.infers_steps:
            IMPLICIT_STEPS.note_backward_begin()
        self._thread_id = threading.get_ident()
        self._layer_token: Token | None = None
        self._operator_token: Token | None = None
        self._compute_span = _BACKPROP.handle_for(loss)
        self._compute_token: Token | DeviceToken | None = self._compute_span.begin()
        self._wait_token: Token | None = None
        self._computed_ns = 0
        self._bucket_count = 0

    def layer_begins(self, span: Span) -> None:
        """Called when the gradient of a layer's output is known; maybe not in the training thread."""
        self._end_inner()
        if self._compute_token is not None:
            self._layer_token = span.begin()

    def operator_begins(self, span: Span) -> None:
        """Called when the gradient of an operator's output is known."""
        operator, self._operator_token = self._operator_token, None
        if operator is not None:
            operator.end()
        if self._compute_token is not None:
            self._operator_token = span.begin()

    def bucket_issued(self) -> int:
        """Called when a bucket is complete, maybe not in the training thread; return which it is."""
        if self._compute_token is None:
            self._resume_computing()
        if NEXT_BUCKET[0] < 0:
            _queue_callback(self._note_computed)
            NEXT_BUCKET[0] = self._bucket_count
        number = NEXT_BUCKET[0]
        NEXT_BUCKET[0] += 1
        return number

    def finish(self, *, failed: bool) -> None:
        """End with the call of backward()."""
        self._end_inner(failed=failed)
        if self._compute_token is not None:
            self._compute_token.end(failed)
        elif self._wait_token is not None:
            self._wait_token.end(failed)
        else:
            _WAIT.complete(self._computed_ns, now(), failed=failed)

    def _end_inner(self, *, failed: bool = False) -> None:
        """End the spans of the operator and of the layer under way."""
        operator, self._operator_token = self._operator_token, None
        if operator is not None:
            operator.end(failed)
        layer, self._layer_token = self._layer_token, None
        if layer is not None:
            layer.end(failed)

    def _note_computed(self) -> None:
        """Called when the graph has been run through."""
        try:
            self._begin_wait()
        except Exception as error:  # noqa: BLE001 - the border to the user's training code
            warn_failed(self._begin_wait, error)

    def _begin_wait(self) -> None:
        self._bucket_count = NEXT_BUCKET[0]
        NEXT_BUCKET[0] = _NOT_MARKED
        self._end_inner()
        if self._compute_token is not None:
            self._compute_token.end()
            self._compute_token = None
        self._computed_ns = now()
        if threading.get_ident() == self._thread_id:
            self._wait_token = _WAIT.begin()

    def _resume_computing(self) -> None:
        """That was a graph inside this one (checkpointing), and what came after it was no waiting."""
        waiting, self._wait_token = self._wait_token, None
        if waiting is not None:
            waiting.discard()
            _BACKPROP.host_span.complete(self._computed_ns, now())
        if threading.get_ident() == self._thread_id:
            self._compute_token = self._compute_span.begin()


class _BackwardPasses:
    """The backward pass under way; one that begins inside it (checkpointing) is a part of it."""

    def __init__(self) -> None:
        self.current_pass: _BackwardPass | None = None
        self.is_installed = False


_PASSES: Final = _BackwardPasses()


def bucket_issued() -> int:
    """Note that the gradients of a bucket are complete; return its number in this pass, or NO_INDEX."""
    current = _PASSES.current_pass
    return NO_INDEX if current is None else current.bucket_issued()


def layer_begins(span: Span) -> None:
    """Note that the gradient of a layer's output is known, so that its backward pass begins."""
    current = _PASSES.current_pass
    if current is not None:
        try:
            current.layer_begins(span)
        except Exception as error:  # noqa: BLE001 - the border to the user's training code
            warn_failed(layer_begins, error)


def operator_begins(span: Span) -> None:
    """Note that the gradient of an operator's output is known."""
    current = _PASSES.current_pass
    if current is not None:
        attempt(current.operator_begins, span)


def install() -> None:
    """Record every backward pass of this process."""
    if not _PASSES.is_installed:
        _PASSES.is_installed = True
        wrapt.wrap_function_wrapper(torch.autograd, "backward", _around_backward)


def _around_backward(
    backward: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Record a call of backward(); one inside another is a part of that."""
    if _PASSES.current_pass is not None:
        return backward(*args, **kwargs)
    _PASSES.current_pass = current = attempt(_BackwardPass, *args, **kwargs)
    failed = True
    try:
        result = backward(*args, **kwargs)
        failed = False
    finally:
        _PASSES.current_pass = None
        NEXT_BUCKET[0] = _NOT_MARKED
        if current is not None:
            attempt(current.finish, failed=failed)
    return result
