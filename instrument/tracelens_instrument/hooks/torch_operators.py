"""Operators of a model's forward pass, and what computes their gradients.

What the model calls of PyTorch is seen by a function mode, which is on while the model's forward runs;
a compiled part is a graph of its own, into which it does not look. In the backward pass each is seen by
the node of the graph that made its output, as layers are. Hooks are put on these nodes when the forward
pass is over, so that at a node at which a layer begins, it begins before its operator.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.compiler import is_compiling
from torch.overrides import TorchFunctionMode

from tracelens_instrument import recorder
from tracelens_instrument.hooks.base import attempt
from tracelens_instrument.hooks.torch_backward import operator_begins
from tracelens_instrument.state import STATE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens_instrument.span import Span

__all__ = ["Operators"]

_NO_WORK: Final = frozenset({"__get__", "__set__", "__delete__", "size", "dim", "numel"})


class Operators(TorchFunctionMode):
    """Records what is called of PyTorch as long as it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self._made: list[tuple[Any, Span]] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if is_compiling() or STATE.segment is None:
            return func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if not name or name in _NO_WORK:
            return func(*args, **(kwargs or {}))
        forward, backward = _spans(name)
        with forward:
            result = func(*args, **(kwargs or {}))
        attempt(self._note, result, backward)
        return result

    def listen(self) -> None:
        """Wait for the gradients of all that was made."""
        made, self._made = self._made, []
        for node, backward in made:
            node.register_prehook(functools.partial(_known, backward))

    def _note(self, result: Any, backward: Span) -> None:
        node = result.grad_fn if isinstance(result, torch.Tensor) else None
        if node is not None and (not self._made or self._made[-1][0] is not node):
            self._made.append((node, backward))


def _known(backward: Span, _gradients: Any) -> None:
    operator_begins(backward)


@functools.cache
def _spans(name: str) -> tuple[Span, Span]:
    return recorder.span(name, kind="forward"), recorder.span(name, kind="backprop")
