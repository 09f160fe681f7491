"""Spans of the whole model, its layers and its operators, in the forward and in the backward pass.

The hooks live in the module's own hook tables, where they would be pickled and copied with it. So they
turn into a function of the standard library that does nothing: a model saved whole loads where
TraceLens is not installed, and a copy (an average of the weights, say) does not record.

The backward pass of a layer is seen by the node of the graph that made its output, because PyTorch's
own backward hooks of modules put further nodes into the graph, and warn in some layers.

What the model calls of PyTorch is seen by a function mode, which is on while the model's forward runs;
a compiled part is a graph of its own, into which it does not look. In the backward pass each is seen by
the node of the graph that made its output, as layers are. Hooks are put on these nodes when the forward
pass is over, so that at a node at which a layer begins, it begins before its operator.
"""

from __future__ import annotations

import functools
import sys
import weakref
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.compiler import is_compiling
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from tracelens.schema.vocabulary import DETAILS
from tracelens_instrument import recorder
from tracelens_instrument.core.state import STATE
from tracelens_instrument.hooks.base import attempt, warn_failed
from tracelens_instrument.hooks.torch.backward import layer_begins, operator_begins
from tracelens_instrument.hooks.torch.devices import Placed
from tracelens_instrument.hooks.torch.steps import IMPLICIT_STEPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor
    from torch.nn import Module
    from torch.utils.hooks import RemovableHandle

    from tracelens_instrument.core.spans import Span
    from tracelens_instrument.device.spans import DeviceSpan

__all__ = ["ModuleHook", "Operators", "RecordedModel", "layers", "tensors_of"]

_NOT_OPERATORS: Final = frozenset({"__get__", "__set__", "__delete__", "size", "dim", "numel"})
_NO_ERROR: Final = (None, None, None)
# By this, activation checkpointing breaks off once it has computed anew what it needs.
_STOP_RECOMPUTATION: Final = getattr(checkpoint, "_StopRecomputationError", None)


class Operators(TorchFunctionMode):
    """Records what is called of PyTorch as long as it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self._nodes: list[tuple[Any, Span]] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call `func` of PyTorch in a span, and remember the graph's node that made its result."""
        if is_compiling() or STATE.segment is None:
            return func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if not name or name in _NOT_OPERATORS:
            return func(*args, **(kwargs or {}))
        forward_span, backward_span = _operator_spans(name)
        with forward_span:
            result = func(*args, **(kwargs or {}))
        attempt(self._remember_node, result, backward_span)
        return result

    def listen(self) -> None:
        """Wait for the gradients of all that was made."""
        nodes, self._nodes = self._nodes, []
        for node, backward in nodes:
            node.register_prehook(functools.partial(_gradient_known, backward))

    def _remember_node(self, result: Any, backward: Span) -> None:
        node = result.grad_fn if isinstance(result, torch.Tensor) else None
        if node is not None and (not self._nodes or self._nodes[-1][0] is not node):
            self._nodes.append((node, backward))


def _gradient_known(backward: Span, _gradients: Any) -> None:
    operator_begins(backward)


@functools.cache
def _operator_spans(name: str) -> tuple[Span, Span]:
    return recorder.span(name, kind="forward"), recorder.span(name, kind="backprop")


class ModuleHook:
    """Base of functions registered with a module; pickles as a function that does nothing."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return getattr, (nullcontext(), "__exit__")


class _BeginLayer(ModuleHook):
    def __init__(self, span: Span) -> None:
        self._span = span

    def __call__(self, _module: Module, _inputs: Any) -> None:
        if not is_compiling():
            self._span.__enter__()


class _RootSpan:
    """The span of the whole model: on a device if its weights are on one at first use."""

    def __init__(self, placed: Placed) -> None:
        self._placed = placed
        self.records_operators = False
        self._operators: list[Any] = []  # `Operators`, whose base has no types
        self.span: Span | DeviceSpan = placed.host_span

    def settle(self, module: Module) -> None:
        self.span = self._placed.handle_for(next(module.parameters(), None))

    def enter(self) -> None:
        operators: Any = Operators()
        operators.__enter__()
        self._operators.append(operators)

    def leave(self) -> None:
        """End the recording of operators; it may have been switched off since it began, or on."""
        if self._operators:
            operators = self._operators.pop()
            operators.__exit__(None, None, None)
            attempt(operators.listen)


class _BeginRoot(ModuleHook):
    def __init__(self, root_span: _RootSpan) -> None:
        self._root_span = root_span
        self._settled = False

    def __call__(self, module: Module, _inputs: Any) -> None:
        if is_compiling():
            return
        if not self._settled:
            self._settled = True
            attempt(self._root_span.settle, module)
        if STATE.infers_steps and module.training and torch.is_grad_enabled():
            IMPLICIT_STEPS.note_forward_begin()
        self._root_span.span.__enter__()
        if self._root_span.records_operators:
            self._root_span.enter()


class _CountStep(ModuleHook):
    """Where only steps are recorded: a forward pass shows that one has begun."""

    def __call__(self, module: Module, _inputs: Any) -> None:
        if not is_compiling() and module.training and torch.is_grad_enabled():
            attempt(IMPLICIT_STEPS.note_forward_begin)


class _EndRoot(ModuleHook):
    def __init__(self, root_span: _RootSpan) -> None:
        self._root_span = root_span

    def __call__(self, _module: Module, _inputs: Any, output: Any) -> None:
        if not is_compiling():
            self._root_span.leave()
            self._root_span.span.__exit__(*(_NO_ERROR if output is not None else _error()))


class _EndLayer(ModuleHook):
    """Ends a layer's forward span, and registers for its backward pass; written to be quick."""

    def __init__(self, forward: Span, backward: Span) -> None:
        self._span = forward
        self._backward = backward

    def __call__(self, _module: Module, inputs: Any, output: Any) -> None:
        if is_compiling():
            return
        self._span.__exit__(*(_NO_ERROR if output is not None else _error()))
        if STATE.segment is not None:
            try:
                self._await_gradient(inputs, output)
            except Exception as error:  # noqa: BLE001 - the border to the user's training code
                warn_failed(self._await_gradient, error)

    def _await_gradient(self, inputs: Any, output: Any) -> None:
        """Begin the layer's backward pass with the gradient of an output that is no input, too."""
        if type(output) is torch.Tensor and len(inputs) == 1:  # the usual case, quickly
            if output.grad_fn is not None and output is not inputs[0]:
                output.grad_fn.register_prehook(self._gradient_known)
            return
        input_ids = {id(tensor) for tensor in tensors_of(inputs)}
        for tensor in tensors_of(output):
            if tensor.grad_fn is not None and id(tensor) not in input_ids:
                tensor.grad_fn.register_prehook(self._gradient_known)

    def _gradient_known(self, _gradients: tuple[Tensor, ...]) -> None:
        layer_begins(self._backward)


def _error() -> tuple[Any, Any, Any]:
    """Return the exception by which a module ends that has no output, unless it is a planned one."""
    found = sys.exc_info()
    return _NO_ERROR if found[0] is _STOP_RECOMPUTATION else found


class RecordedModel:
    """Records the passes of a model and, by level of detail, of its layers and operators.

    At level ``step`` it only counts forward passes. The hooks of the model itself stay while the level
    changes, because that may happen when its forward pass begins.
    """

    def __init__(self, root: Module, detail: str) -> None:
        self._root = weakref.ref(root)
        self._detail = detail
        self._root_span = _RootSpan(Placed(recorder.span("forward", kind="forward")))
        self._layer_handles: list[RemovableHandle] = []
        if detail == "step":
            count_step: Any = _CountStep()
            self._root_handles = [root.register_forward_pre_hook(count_step)]
        else:
            self._root_handles = _register(
                root, _BeginRoot(self._root_span), _EndRoot(self._root_span)
            )
        self.look_closer(requested_level=None)

    def look_closer(self, requested_level: str | None) -> None:
        """Record at this level, where it is closer than the model's own one; None: at its own one."""
        level = max(requested_level or self._detail, self._detail, key=DETAILS.index)
        self._root_span.records_operators = level == "op"
        root = self._root()
        if level in {"step", "phase"}:
            _remove(self._layer_handles)
        elif root is not None and not self._layer_handles:
            for name, module in layers(root):
                forward = recorder.span(name, kind="forward")
                backward = recorder.span(name, kind="backprop")
                self._layer_handles += _register(
                    module, _BeginLayer(forward), _EndLayer(forward, backward)
                )

    def remove(self) -> None:
        """Record nothing of it any more."""
        _remove(self._layer_handles)
        _remove(self._root_handles)


def _remove(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
    handles.clear()


def layers(root: Module) -> Iterator[tuple[str, Module]]:
    """Find the layers: modules without modules inside, by their path in the user's model."""
    inner = root.module if isinstance(root, torch.nn.parallel.DistributedDataParallel) else root
    for name, module in inner.named_modules():
        scripted = isinstance(module, torch.jit.ScriptModule)
        if name and not scripted and next(module.children(), None) is None:
            yield name, module


def _register(module: Module, begin: ModuleHook, end: ModuleHook) -> list[RemovableHandle]:
    pre: Any = begin
    post: Any = end
    return [
        module.register_forward_pre_hook(pre),
        module.register_forward_hook(post, always_call=True),
    ]


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Find the tensors among what a module takes or returns: bare, in sequences, or by name."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        yield from (item for item in value if isinstance(item, torch.Tensor))
    elif isinstance(value, dict):
        yield from (item for item in value.values() if isinstance(item, torch.Tensor))
