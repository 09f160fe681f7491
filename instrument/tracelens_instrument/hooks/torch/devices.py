"""Device times: spans of work on tensors of a CUDA device are timed there, too.

On the host such work ends as soon as it is queued, so that only the device can tell how long it took.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from tracelens_instrument.device.spans import DeviceSpan, DeviceToken

if TYPE_CHECKING:
    from tracelens_instrument.core.spans import Span, Token

__all__ = ["REDUCTIONS", "Placed", "QueuedEnds", "on_device"]

REDUCTIONS: Final = "reductions"  # track of the timeline: NCCL has streams of its own


def on_device(tensor: Any) -> bool:
    """Return True if this is a tensor on a CUDA device."""
    return isinstance(tensor, torch.Tensor) and tensor.is_cuda


class Placed:
    """A kind of work whose place is known when it begins; `track_name` as in `DeviceSpan`."""

    def __init__(self, span: Span, track_name: str | None = None) -> None:
        self.host_span = span
        self._device_span = DeviceSpan(span, track_name)

    def handle_for(self, tensor: Any) -> Span | DeviceSpan:
        """Return the handle for work on the device of this tensor."""
        return self._device_span if on_device(tensor) else self.host_span


class QueuedEnds:
    """Ends the spans of a process group's queued operations, on one stream that waits for them.

    PyTorch would call back on a stream of its pool for each. A device has eight hardware queues
    for all streams (`CUDA_DEVICE_MAX_CONNECTIONS`): as many that wait hold up the training's own.
    """

    def __init__(self) -> None:
        self._stream_by_device: dict[int, Any] = {}  # by device

    def end(self, token: Token | DeviceToken, future: Any) -> None:
        """End a span where `future` ends, which the host takes to be over.

        On the host alone if the calling thread's stream is captured: no other one may wait then.
        """
        if not isinstance(token, DeviceToken):
            token.end()
            return
        try:
            with torch.cuda.stream(self._stream()):
                future.wait()
                token.end()
        except BaseException:
            token.end(failed=True)
            raise

    def _stream(self) -> Any:
        device = torch.cuda.current_device()
        if device not in self._stream_by_device:
            self._stream_by_device[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._stream_by_device[device]
