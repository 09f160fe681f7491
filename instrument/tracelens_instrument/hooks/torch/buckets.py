"""Gradient buckets of DistributedDataParallel: each reduction, from issue to completion.

What DDP reduces by itself is seen in PyTorch's dispatcher (`operations`), and left alone. A
communication hook of the user's, which may do anything, is called from ours, which notes the times.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

import torch.distributed as dist
import wrapt

from tracelens_instrument.core.failures import warn_once
from tracelens_instrument.core.state import STATE
from tracelens_instrument.hooks.base import Switch, attempt, warn_failed
from tracelens_instrument.hooks.torch import backward, compiled
from tracelens_instrument.hooks.torch.process_groups import Flight, Group, group_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch._C._distributed_c10d import GradBucket
    from torch.nn.parallel import DistributedDataParallel

    Future = torch.futures.Future[torch.Tensor]
    UserHook = Callable[[Any, GradBucket], Future]

__all__ = [
    "in_users_hook",
    "install",
    "is_gradient",
    "resume",
    "see_bucket",
    "suspend",
    "warn_of_earlier_hook",
]

_INSTALLED: Final = Switch()
# Communication hooks of the user's that run now, each inside the one before.
_running_hooks: Final[list[_UserHook]] = []


class _UserHook:
    """State of our communication hook, if the user has one that it must call."""

    def __init__(self, group: dist.ProcessGroup, hook: UserHook, state: Any) -> None:
        self.group = group
        self.hook = hook
        self.state = state

    def __reduce__(self) -> tuple[type[object], tuple[()]]:
        return object, ()

    def begin(self, bucket: GradBucket) -> Flight:
        """A bucket is complete."""
        backward.bucket_issued()
        buffer = bucket.buffer()
        return _begin_reduction(_Buffer(buffer, group_of(self.group)), bucket.index())

    def reduce(self, bucket: GradBucket) -> Future:
        """Call the user's communication hook; the operations that it issues are part of the bucket."""
        _running_hooks.append(self)
        try:
            return self.hook(self.state, bucket)
        finally:
            _running_hooks.pop()


def install() -> None:
    """Call every communication hook that is registered from now on from ours."""
    if _INSTALLED.turn_on_if_off():
        cls = "DistributedDataParallel.register_comm_hook"
        wrapt.wrap_function_wrapper("torch.nn.parallel.distributed", cls, _around_register)


def warn_of_earlier_hook(model: DistributedDataParallel) -> None:
    """Warn if `model` already has a communication hook, which cannot be recorded."""
    hooks = [hook for hook, _ in model._comm_hooks]  # noqa: SLF001 - nothing public has it
    if any(hook is not _record_bucket for hook in hooks):
        warn_once(
            "the gradient buckets of a model are not recorded, because its communication hook was "
            "registered before attach was called: call attach first"
        )


def is_gradient(tensors: list[torch.Tensor]) -> bool:
    """Return True if DDP reduces gradients here, not which parameters are in use."""
    buffer = tensors[0]
    return id(buffer) in _BUFFERS or buffer.dtype.is_floating_point or buffer.dtype.is_complex


def see_bucket(args: tuple[Any, ...]) -> Flight | None:
    """Begin DDP's allreduce of ([buffer], group, ...); None if it is part of a communication hook."""
    if _running_hooks:
        return None
    try:
        buffer = args[0][0]
        known_buffer = _BUFFERS.get(id(buffer))
        if known_buffer is None or known_buffer.buffer() is not buffer:
            known_buffer = _remember_buffer(buffer, group_of(dist.ProcessGroup.unbox(args[1])))
        return _begin_reduction(known_buffer, backward.bucket_issued())
    except Exception as error:  # noqa: BLE001 - the border to the user's training code
        warn_failed(_begin_reduction, error)
        return None


def in_users_hook() -> bool:
    """Return True if a communication hook of the user's runs: what it issues is part of its bucket."""
    return bool(_running_hooks)


class _Buffer:
    """The memory that DDP reduces a bucket in, step after step."""

    __slots__ = ("buffer", "group", "nbytes", "span")

    def __init__(self, buffer: torch.Tensor, group: Group) -> None:
        self.buffer = weakref.ref(buffer, _forget_buffer)
        self.group = group
        self.span = group.span_of("bucket", "allreduce", buffer)
        self.nbytes = 0 if buffer.is_sparse else buffer.nbytes


# By id: to ask PyTorch for the group of each call would take longer than all the rest.
_BUFFERS: Final[dict[int, _Buffer]] = {}


def _remember_buffer(buffer: torch.Tensor, group: Group) -> _Buffer:
    """Keep the span, track and size of a buffer's reductions, also in the compiled library, if any."""
    new_buffer = _BUFFERS[id(buffer)] = _Buffer(buffer, group)
    library = compiled.load_library()
    if library is not None and group.queued_ends is None:  # else only Python knows their ends
        library.remember(
            buffer, new_buffer.span.begin, group.bucket_track, new_buffer.nbytes, group.next_seq
        )
    return new_buffer


def resume() -> None:
    """Let compiled code see the buckets that were met."""
    library = compiled.load_library()
    if library is not None:
        engine = tuple(backward.ENGINE)
        library.configure(
            STATE, _running_hooks, engine, backward.bucket_issued, backward.NEXT_BUCKET
        )
        library.resume()


def suspend() -> None:
    """Let compiled code see no buckets."""
    library = compiled.load_library()
    if library is not None:
        library.suspend()


def _forget_buffer(dropped: weakref.ref[torch.Tensor]) -> None:
    for key, known in list(_BUFFERS.items()):
        if known.buffer is dropped:
            del _BUFFERS[key]


def _begin_reduction(known_buffer: _Buffer, bucket_number: int) -> Flight:
    group = known_buffer.group
    token = known_buffer.span.begin(
        group.bucket_track, nbytes=known_buffer.nbytes, seq=group.next_seq(), bucket=bucket_number
    )
    return Flight(token, group)


def _around_register(
    register_comm_hook: Callable[..., Any],
    model: DistributedDataParallel,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Register our communication hook in the place of the user's, which it calls with its state."""
    user_state, user_hook = _hook_arguments(*args, **kwargs)
    if not callable(user_hook) or model._use_python_reducer:  # noqa: SLF001 - it has no buckets
        return register_comm_hook(*args, **kwargs)
    check_hook: Any = model._check_comm_hook  # noqa: SLF001 - as register_comm_hook begins
    check_hook(user_hook)
    return register_comm_hook(_UserHook(model.process_group, user_hook, user_state), _record_bucket)


def _hook_arguments(state: Any = None, hook: Any = None) -> tuple[Any, Any]:
    return state, hook


def _record_bucket(state: _UserHook, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Call the user's communication hook, in `state`, in a span that ends with the future returned."""
    flight = attempt(state.begin, bucket)
    try:
        future = state.reduce(bucket)
    except BaseException:
        if flight is not None:
            flight.on_refused()
        raise
    if flight is not None:
        attempt(flight.end_with, future)
    return future


_record_bucket.__annotations__.clear()  # DDP refuses a hook whose annotations are strings
