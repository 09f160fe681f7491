"""Gradient buckets of DistributedDataParallel: each reduction, from issue to completion.

What DDP reduces by itself is seen in PyTorch's dispatcher, and left alone. A communication hook of the
user's, which may do anything, is called from ours, which notes the times.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import torch.distributed as dist
import wrapt

from tracelens.schema.record import NO_INDEX
from tracelens_instrument.failures import warn_once
from tracelens_instrument.hooks import torch_backward, torch_dispatch
from tracelens_instrument.hooks.base import attempt, say_failed
from tracelens_instrument.hooks.torch_groups import Group, group_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch._C._distributed_c10d import GradBucket
    from torch.nn.parallel import DistributedDataParallel

    from tracelens_instrument.device_span import DeviceToken
    from tracelens_instrument.span import Token

    Future = torch.futures.Future[torch.Tensor]
    UserHook = Callable[[Any, GradBucket], Future]

__all__ = ["install", "look_for_hook"]

_installed: Final[list[bool]] = []
_users: Final[list[bool]] = []  # a communication hook of the user's runs


class _Flight:
    """A bucket on its way; ends in the thread that completes the reduction.

    With NCCL that is as soon as the reduction is queued; but there the callback runs on a stream that
    waits for it, so that the device's end of the span is that of the reduction.
    """

    __slots__ = ("_token",)

    def __init__(self, group: Group, buffer: torch.Tensor, number: int | None) -> None:
        nbytes = 0 if buffer.is_sparse else buffer.nbytes
        self._token: Token | DeviceToken = group.span_of(buffer).begin(
            group.track,
            seq=group.next_seq(),
            bucket=NO_INDEX if number is None else number,
            nbytes=nbytes,
        )

    def issued(self, result: Any) -> None:
        """End with the work that the operator returned."""
        try:
            self.end_with(dist.Work.unbox(result[-1]).get_future())
        except Exception as error:  # noqa: BLE001 - the border to the user's training code
            say_failed(self.end_with, error)

    def refused(self) -> None:
        """End now, for nothing was issued."""
        self._token.end(failed=True)

    def end_with(self, future: Any) -> None:
        """End with this future, which itself stays as it is."""
        future.add_done_callback(self._over)

    def _over(self, future: Any) -> None:
        try:
            future.value()
        except Exception:  # noqa: BLE001 - the reduction failed; DDP raises it where it waits
            self._token.end(failed=True)
        else:
            self._token.end()


class _UserHook:
    """State of our communication hook, where there is one of the user's to be called."""

    def __init__(self, group: dist.ProcessGroup, hook: UserHook, state: Any) -> None:
        self.group = group
        self.hook = hook
        self.state = state

    def __reduce__(self) -> tuple[type[object], tuple[()]]:
        return object, ()

    def begin(self, bucket: GradBucket) -> _Flight:
        """A bucket is complete."""
        torch_backward.bucket_issued()
        return _Flight(group_of(self.group), bucket.buffer(), bucket.index())

    def reduce(self, bucket: GradBucket) -> Future:
        """Do what the user wants; the operations of which that consists are a part of it."""
        _users.append(True)
        try:
            return self.hook(self.state, bucket)
        finally:
            _users.pop()


def install() -> None:
    """Record the buckets of every model, and every communication hook registered from now on."""
    if not _installed:
        _installed.append(True)
        torch_dispatch.install(_watch, ("allreduce_",))
        cls = "DistributedDataParallel.register_comm_hook"
        wrapt.wrap_function_wrapper("torch.nn.parallel.distributed", cls, _around_register)


def look_for_hook(model: DistributedDataParallel) -> None:
    """Say so, if `model` has a communication hook already, which nobody sees."""
    hooks = [hook for hook, _ in model._comm_hooks]  # noqa: SLF001 - nothing public tells
    if any(hook is not _record_bucket for hook in hooks):
        warn_once(
            "the gradient buckets of a model are not recorded, because its communication hook was "
            "registered before attach was called: call attach first"
        )


def _watch(_name: str, args: tuple[Any, ...]) -> _Flight | None:
    """See an allreduce: by DDP, if no Python code between it and the engine has issued it."""
    if _users or not torch_backward.runs_below(sys._getframe(1).f_back):  # noqa: SLF001 - no other way
        return None
    try:
        return _bucket(args)
    except Exception as error:  # noqa: BLE001 - the border to the user's training code
        say_failed(_bucket, error)
        return None


def _bucket(args: tuple[Any, ...]) -> _Flight | None:
    (buffer,), group = args[:2]
    if not (buffer.is_floating_point() or buffer.is_complex()):  # which parameters are in use
        return None
    number = torch_backward.bucket_issued()
    return _Flight(group_of(dist.ProcessGroup.unbox(group)), buffer, number)


def _around_register(
    register_comm_hook: Callable[..., Any],
    model: DistributedDataParallel,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    state, hook = _arguments(*args, **kwargs)
    if not callable(hook) or model._use_python_reducer:  # noqa: SLF001 - it has no buckets
        return register_comm_hook(*args, **kwargs)
    check: Any = model._check_comm_hook  # noqa: SLF001 - register_comm_hook itself begins with it
    check(hook)
    return register_comm_hook(_UserHook(model.process_group, hook, state), _record_bucket)


def _arguments(state: Any = None, hook: Any = None) -> tuple[Any, Any]:
    return state, hook


def _record_bucket(state: _UserHook, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    flight = attempt(state.begin, bucket)
    try:
        future = state.reduce(bucket)
    except BaseException:
        if flight is not None:
            flight.refused()
        raise
    if flight is not None:
        attempt(flight.end_with, future)
    return future


_record_bucket.__annotations__.clear()  # DDP refuses a hook whose annotations are strings
