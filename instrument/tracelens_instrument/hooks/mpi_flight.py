"""Flight under way: what is known at the call, and what only the status tells in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpi4py import MPI

from tracelens_instrument.clock import now
from tracelens_instrument.hooks.base import guarded

if TYPE_CHECKING:
    from tracelens_instrument.hooks.mpi_log import Log
    from tracelens_instrument.span import Span, Token

__all__ = ["Flight", "Receipt"]


class Receipt:
    """A receive from anybody, or with any tag: sender, tag, number and size come with the status.

    While it waits it stands in the trace without them.
    """

    def __init__(self, log: Log, span: Span, track: int | None, token: Token) -> None:
        self._log, self._span, self._track, self.token = log, span, track, token
        self._start_ns = now()

    def end(self, status: MPI.Status | None, failed: bool) -> None:  # noqa: FBT001 - as Token.end
        """Record what came."""
        end_ns = now()
        if failed or status is None:
            self.token.end(failed)
            return
        source, tag = status.Get_source(), status.Get_tag()
        self.token.discard()
        if source == MPI.PROC_NULL:
            return
        self._span.complete(
            self._start_ns,
            end_ns,
            self._track,
            nbytes=status.Get_count(MPI.BYTE),
            seq=self._log.next_message("recv", source, tag),
            peer=self._log.global_rank(source),
            key=tag,
        )


class Flight:
    """What one call has under way; ended once, by whoever first sees it complete."""

    def __init__(self, status: MPI.Status | None = None) -> None:
        self.tokens: list[Token] = []
        self.receipt: Receipt | None = None
        self.status = status
        self._cancelled = False

    @property
    def needs_status(self) -> bool:
        """Whether the end cannot be recorded without a status."""
        return self.receipt is not None or self._cancelled

    def cancel(self) -> None:
        """Take note that it may never happen."""
        self._cancelled = True

    @guarded
    def end(self, status: MPI.Status | None = None, failed: bool = False) -> None:  # noqa: FBT001, FBT002 - as Token.end
        """Record that it is over."""
        told = status or self.status
        tokens, self.tokens = self.tokens, []
        receipt, self.receipt = self.receipt, None
        if self._cancelled and told is not None and told.Is_cancelled():
            _discard(tokens, receipt)
            return
        for token in tokens:
            token.end(failed)
        if receipt is not None:
            receipt.end(told, failed)


def _discard(tokens: list[Token], receipt: Receipt | None) -> None:
    for token in tokens:
        token.discard()
    if receipt is not None:
        receipt.token.discard()
