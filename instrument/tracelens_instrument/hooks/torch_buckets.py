"""Gradient buckets of DistributedDataParallel: each reduction, from issue to completion.

DDP allows one communication hook per model. Ours does what DDP does without one, bit for bit, or
calls the user's, and notes the times; it is registered at the first forward pass, so that the user's
comes first.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

import wrapt

from tracelens_instrument.failures import warn_once
from tracelens_instrument.hooks import torch_backward
from tracelens_instrument.hooks.base import guarded
from tracelens_instrument.hooks.torch_groups import Group, group_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import GradBucket
    from torch.nn.parallel import DistributedDataParallel

    from tracelens_instrument.device_span import DeviceToken
    from tracelens_instrument.span import Token

    Future = torch.futures.Future[torch.Tensor]
    UserHook = Callable[[Any, GradBucket], Future]

__all__ = ["Buckets", "install", "record_buckets"]


class Buckets:
    """State of our communication hook: one per model; never keeps the model alive."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self.registered = False
        self.user_hook: tuple[UserHook, Any] | None = None
        self._model = weakref.ref(model)
        self._group: Group | None = None

    def __reduce__(self) -> tuple[type[object], tuple[()]]:
        return object, ()

    @property
    def process_group(self) -> dist.ProcessGroup:
        """The group that reduces, as long as the model lives."""
        model = self._model()
        assert model is not None  # its reducer has called us
        group: dist.ProcessGroup = model.process_group
        return group

    def begin(self, bucket: GradBucket) -> Token | DeviceToken:
        """A bucket is complete and its reduction is issued."""
        group = self._group
        if group is None:
            group = self._group = group_of(self.process_group)
        buffer = bucket.buffer()
        nbytes = 0 if buffer.is_sparse else buffer.nbytes
        return group.span_of(buffer).begin(
            group.track, seq=group.next_seq(), bucket=bucket.index(), nbytes=nbytes
        )

    def reduce(self, bucket: GradBucket) -> Future:
        """Do what DDP does without a hook, or what the user's hook does."""
        if self.user_hook is not None:
            hook, state = self.user_hook
            return hook(state, bucket)
        return _average(self.process_group, bucket.buffer())


_MODELS: Final[weakref.WeakKeyDictionary[DistributedDataParallel, Buckets]] = (
    weakref.WeakKeyDictionary()
)
_installed: Final[list[bool]] = []


def install() -> None:
    """See every communication hook that a program registers from now on."""
    if not _installed:
        _installed.append(True)
        cls = "DistributedDataParallel.register_comm_hook"
        wrapt.wrap_function_wrapper("torch.nn.parallel.distributed", cls, _around_register)


def record_buckets(model: DistributedDataParallel) -> Buckets | None:
    """Get ready to record the reductions of `model`; None if a hook is in the way."""
    if model._comm_hooks:  # noqa: SLF001 - nothing public tells whether a hook is there
        warn_once(
            "the gradient buckets of a model are not recorded, because its communication hook was "
            "registered before attach was called: call attach first"
        )
        return None
    return _MODELS.setdefault(model, Buckets(model))


def register(model: DistributedDataParallel) -> None:
    """Register our hook, if the user has not done so by registering one."""
    buckets = _MODELS.get(model)
    if buckets is None or buckets.registered or _uses_other_means(model):
        return
    buckets.registered = True
    model.register_comm_hook(buckets, _record_bucket)


def _uses_other_means(model: DistributedDataParallel) -> bool:
    """Tell whether DDP reduces in a way that a hook would change."""
    joins_unevenly = not getattr(model, "_divide_by_initial_world_size", True)
    return joins_unevenly or bool(getattr(model, "_use_python_reducer", False))


def _around_register(
    register_comm_hook: Callable[..., Any],
    model: DistributedDataParallel,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    buckets = _MODELS.get(model)
    state, hook = _arguments(*args, **kwargs)
    if buckets is None or hook is _record_bucket or not callable(hook):
        return register_comm_hook(*args, **kwargs)
    if buckets.user_hook is not None:
        return register_comm_hook(state, hook)  # DDP says that there can be only one
    check: Any = model._check_comm_hook  # noqa: SLF001 - register_comm_hook itself begins with it
    check(hook)
    buckets.user_hook = (hook, state)
    if not buckets.registered:
        buckets.registered = True
        register_comm_hook(buckets, _record_bucket)
    return None


def _arguments(state: Any = None, hook: Any = None) -> tuple[Any, Any]:
    return state, hook


def _record_bucket(state: Buckets, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    token = guarded(state.begin)(bucket)
    future = state.reduce(bucket)
    if token is not None:
        future = _ending(token, future)
    guarded(torch_backward.bucket_ready)(last=bucket.is_last())
    return future


_record_bucket.__annotations__.clear()  # DDP refuses a hook whose annotations are strings


def _average(group: dist.ProcessGroup, buffer: torch.Tensor) -> Future:
    """Reduce like DDP without a hook, which multiplies dense gradients and divides sparse ones."""
    world = group.size()
    if buffer.is_sparse:
        buffer.div_(world)
    else:
        buffer.mul_(1.0 / world)
    work: Any = group.allreduce([buffer])
    future: Future = work.get_future().then(_first)
    return future


def _first(future: Any) -> torch.Tensor:
    tensor: torch.Tensor = future.value()[0]
    return tensor


def _ending(token: Token | DeviceToken, future: Future) -> Future:
    """End the span in the thread that completes the reduction; the future itself stays as it is.

    With NCCL that is as soon as the reduction is queued; but there the callback runs on a stream that
    waits for it, so that the device's end of the span is that of the reduction.
    """

    def end(done: Any) -> None:
        try:
            done.value()
        except Exception:  # noqa: BLE001 - the reduction failed; DDP raises it where it waits
            token.end(failed=True)
        else:
            token.end()

    future.add_done_callback(end)
    return future
