"""Backward passes: computing gradients, then waiting for the reductions that are still under way.

Inside, each layer's span begins when the gradient of its output is known, and ends where the next
layer's begins: so it holds the layer's gradients and what lies between it and the layer before.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import torch
import wrapt

from tracelens_instrument import recorder
from tracelens_instrument.clock import now
from tracelens_instrument.hooks.base import guarded, say_failed
from tracelens_instrument.hooks.torch_device import Placed
from tracelens_instrument.hooks.torch_steps import STEPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens_instrument.device_span import DeviceToken
    from tracelens_instrument.span import Span, Token

__all__ = ["bucket_ready", "install", "layer_begins"]

_BACKPROP: Final = Placed(recorder.span("backprop", kind="backprop"))
_WAIT: Final = recorder.span("wait for reductions", kind="wait")


class _Pass:
    """One call of backward() on the training thread."""

    def __init__(self, loss: Any) -> None:
        STEPS.computing()
        self._thread = threading.get_ident()
        self._layer: Token | None = None
        self._span = _BACKPROP.at(loss)
        self._computing: Token | DeviceToken | None = self._span.begin()
        self._waiting: Token | None = None
        self._ready_ns = 0

    def layer_begins(self, span: Span) -> None:
        """Be told that the gradient of a layer's output is known; maybe not in the training thread."""
        self._end_layer()
        if self._computing is not None:
            self._layer = span.begin()

    def bucket_ready(self, *, last: bool) -> None:
        """Be told that a bucket is complete; maybe not in the training thread."""
        if self._computing is None:
            self._was_computing()
        if last:
            self._wait()
        elif self._computing is None and self._here:
            self._computing = self._span.begin()

    def finish(self, *, failed: bool) -> None:
        """End with the call of backward()."""
        self._end_layer(failed=failed)
        if self._computing is not None:
            self._computing.end(failed)
        elif self._waiting is not None:
            self._waiting.end(failed)
        else:
            _WAIT.complete(self._ready_ns, now(), failed=failed)

    def _end_layer(self, *, failed: bool = False) -> None:
        layer, self._layer = self._layer, None
        if layer is not None:
            layer.end(failed)

    def _wait(self) -> None:
        self._end_layer()
        if self._computing is not None:
            self._computing.end()
            self._computing = None
        self._ready_ns = now()
        if self._here:
            self._waiting = _WAIT.begin()

    def _was_computing(self) -> None:
        """There is another model behind the one whose last bucket had come."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.discard()
            _BACKPROP.on_host.complete(self._ready_ns, now())

    @property
    def _here(self) -> bool:
        return threading.get_ident() == self._thread


class _Passes:
    """The backward pass under way; one that begins inside it (checkpointing) is a part of it."""

    def __init__(self) -> None:
        self.current: _Pass | None = None
        self.installed = False


_PASSES: Final = _Passes()


def bucket_ready(*, last: bool) -> None:
    """Say that the gradients of a bucket are complete, and whether it is the last one."""
    current = _PASSES.current
    if current is not None:
        current.bucket_ready(last=last)


def layer_begins(span: Span) -> None:
    """Say that the gradient of a layer's output is known, so that its backward pass begins."""
    current = _PASSES.current
    if current is not None:
        try:
            current.layer_begins(span)
        except Exception as error:  # noqa: BLE001 - the border to the user's training code
            say_failed(layer_begins, error)


def install() -> None:
    """Record every backward pass of this process."""
    if not _PASSES.installed:
        _PASSES.installed = True
        wrapt.wrap_function_wrapper(torch.autograd, "backward", _around_backward)


def _around_backward(
    backward: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if _PASSES.current is not None:
        return backward(*args, **kwargs)
    _PASSES.current = current = guarded(_begin)(*args, **kwargs)
    failed = True
    try:
        result = backward(*args, **kwargs)
        failed = False
    finally:
        _PASSES.current = None
        if current is not None:
            guarded(current.finish)(failed=failed)
    return result


def _begin(tensors: Any = None, *_args: Any, **_kwargs: Any) -> _Pass:
    """Begin a pass: of a tensor, or of several, of which the first says where all are."""
    return _Pass(next(iter(tensors), None) if isinstance(tensors, (list, tuple)) else tensors)
