"""Operations of torch.distributed, seen where all of them pass: in PyTorch's dispatcher.

Each collective, whether Python, DistributedDataParallel's C++ or a compiled graph issues it, is an
operator of the library ``c10d``. A kernel of ours stands before the backend's own, sees what is
issued, and hands it on as it is. So nothing about the operation changes, least of all its results:
there is no communication hook, for which DistributedDataParallel would average in a pass of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from torch import library
from torch._C import DispatchKey

from tracelens_instrument.failures import warn_once
from tracelens_instrument.state import STATE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Issue", "Watch", "install", "resume", "suspend"]

# What PyTorch passes through by default on its way to a backend, after autograd.
_KEY: Final = "BackendSelect"


class Issue(Protocol):
    """An operation that is about to be issued, by whoever wants to know its end."""

    def issued(self, result: Any) -> object:
        """Be told what the operator returned."""
        ...

    def refused(self) -> object:
        """Be told that it raised."""
        ...


class Watch(Protocol):
    """Who looks at an operator; called from the kernel, whose caller is who issues it."""

    def __call__(self, args: tuple[Any, ...], /) -> Issue | None:
        """Look at the arguments of an operator; None: its end does not matter."""
        ...


_library: Final[list[Any]] = []
_kernels: Final[dict[str, Callable[..., Any]]] = {}


def install(watches: Mapping[str, Watch]) -> None:
    """Call each of `watches` with the arguments of the operator of that name, before it is issued."""
    if _kernels:
        return
    try:
        _kernels.update((name, _kernel(name, watch)) for name, watch in watches.items())
        resume()
    except Exception as error:  # noqa: BLE001 - whatever another PyTorch lacks, the training goes on
        warn_once(f"collectives of this PyTorch ({torch.__version__}) are not recorded ({error!r})")


def suspend() -> None:
    """Leave the dispatcher as it was; `resume` goes on."""
    while _library:
        _library.pop()._destroy()  # noqa: SLF001 - else it lasts until it is collected


def resume() -> None:
    """Stand before the operators again."""
    if not _library:
        ours: Any = library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]  # it has no types
        _library.append(ours)
        for name, kernel in _kernels.items():
            ours.impl(name, kernel, _KEY, with_keyset=True)


def _kernel(name: str, watch: Watch) -> Callable[..., Any]:
    hand_on = getattr(torch.ops.c10d, name).default.redispatch
    below = torch._C._dispatch_keyset_full_after(getattr(DispatchKey, _KEY))  # noqa: SLF001 - see install

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        issue = None
        if STATE.segment is not None or STATE.waiting is not None:
            issue = watch(args)
        if issue is None:
            return hand_on(keys & below, *args, **kwargs)
        try:
            result = hand_on(keys & below, *args, **kwargs)
        except BaseException:
            issue.refused()
            raise
        issue.issued(result)
        return result

    return kernel
