"""What a use of a span hands out in Python: a token, which ends it."""

from __future__ import annotations

import struct

from tracelens_instrument.arguments import is_true
from tracelens_instrument.clock import now
from tracelens_instrument.failures import contain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, Self

    from tracelens_instrument.segments import Segment

__all__ = ["NOTHING", "Token"]

_write_definition = struct.Struct("@I").pack_into
_DEFINITION_OFFSET = 60
_UNUSED = 0


class Token:
    """A span that has begun; `end` closes it, in any thread, and so does leaving it as a context."""

    __slots__ = ("segment", "word")

    segment: Segment | None
    word: int

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: object, _traceback: object
    ) -> None:
        try:
            segment = self.segment
            if segment is not None:
                end = now()
                self.segment = None
                segment.ends[self.word] = end if kind is None else -end
        except Exception as failure:  # noqa: BLE001 - the border to the user's training code
            contain(failure)

    def end(self, failed: bool = False) -> None:  # noqa: FBT001, FBT002 - keywords cost time here
        """Close the span, as failed if it ended by an exception; a second time does nothing."""
        try:
            segment = self.segment
            if segment is not None:
                end = now()
                self.segment = None
                if failed is not False and is_true(failed):
                    end = -end
                segment.ends[self.word] = end
        except Exception as error:  # noqa: BLE001 - the border to the user's training code
            contain(error)

    def discard(self) -> None:
        """Make as if it had never begun."""
        segment, self.segment = self.segment, None
        if segment is not None:
            _write_definition(segment.memory, 8 * self.word + _DEFINITION_OFFSET, _UNUSED)


NOTHING: Final = Token()
NOTHING.segment = None
