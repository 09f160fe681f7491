"""Device times: spans of work on tensors of a CUDA device are timed there, too.

On the host such work ends as soon as it is queued, so that only the device can tell how long it took.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from tracelens_instrument.device.spans import DeviceSpan

if TYPE_CHECKING:
    from tracelens_instrument.core.spans import Span

__all__ = ["REDUCTIONS", "Placed", "on_device"]

REDUCTIONS: Final = "reductions"  # row of the timeline: NCCL has streams of its own


def on_device(tensor: Any) -> bool:
    """Return whether this is a tensor on a CUDA device."""
    return isinstance(tensor, torch.Tensor) and tensor.is_cuda


class Placed:
    """A kind of work whose place is known when it begins; `row` as in `DeviceSpan`."""

    def __init__(self, span: Span, row: str | None = None) -> None:
        self.on_host = span
        self._on_device = DeviceSpan(span, row)

    def at(self, tensor: Any) -> Span | DeviceSpan:
        """Return the handle for work on this tensor, which stands for all that it works on."""
        return self._on_device if on_device(tensor) else self.on_host
