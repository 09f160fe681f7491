"""An operation of torch.distributed on its way: a span from its issue to its completion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch.distributed as dist

from tracelens_instrument.hooks.base import say_failed

if TYPE_CHECKING:
    from tracelens_instrument.device_span import DeviceToken
    from tracelens_instrument.span import Token

__all__ = ["Flight", "waited_for"]

_MOST_UNFOLLOWED: Final = 256


class Flight:
    """Ends its span in the thread that completes the operation.

    With NCCL that is as soon as the operation is queued; but there the callback runs on a stream that
    waits for it, so that the device's end of the span is that of the operation.
    """

    __slots__ = ("_token",)

    def __init__(self, token: Token | DeviceToken) -> None:
        self._token = token

    def issued(self, result: Any) -> None:
        """End with the work that an operator returned, alone or behind its tensors."""
        try:
            boxed = result[-1] if isinstance(result, (tuple, list)) else result
            self._follow(dist.Work.unbox(boxed))
        except Exception as error:  # noqa: BLE001 - the border to the user's training code
            say_failed(self._follow, error)

    def refused(self) -> None:
        """End now, for nothing was issued."""
        self._token.end(failed=True)

    def end_with(self, future: Any) -> None:
        """End with this future, which itself stays as it is."""
        future.add_done_callback(self._over)

    def waited_for(self, _work: Any, *, failed: bool) -> None:
        """Be told that somebody has waited for it."""
        self._token.end(failed=failed)

    def end_by_waiting(self, work: Any) -> None:
        """End when somebody has waited for this work."""
        _unfollowed[id(work)] = (work, self)  # while it is here, Python knows it by this object
        if len(_unfollowed) > _MOST_UNFOLLOWED:
            _unfollowed.pop(next(iter(_unfollowed)), None)

    def _follow(self, work: Any) -> None:
        try:
            future = work.get_future()
        except RuntimeError:  # it has none: gloo completes reduce_scatter and messages by waiting
            self.end_by_waiting(work)
        else:
            self.end_with(future)

    def _over(self, future: Any) -> None:
        try:
            future.value()
        except Exception:  # noqa: BLE001 - it failed; PyTorch raises it where somebody waits
            self._token.end(failed=True)
        else:
            self._token.end()


_unfollowed: Final[dict[int, tuple[Any, Flight]]] = {}


def waited_for(work: Any, *, failed: bool) -> None:
    """Say that somebody has waited for a work, which ends it if nothing else does."""
    _, flight = _unfollowed.pop(id(work), (None, None))
    if flight is not None:
        flight.waited_for(work, failed=failed)
