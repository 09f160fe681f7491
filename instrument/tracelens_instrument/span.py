"""Spans, as the recorder in use makes them: `Span` and `Token` are those in C or those in Python."""

from __future__ import annotations

from tracelens_instrument import span_in_python
from tracelens_instrument.backend import NATIVE
from tracelens_instrument.span_in_python import Values
from tracelens_instrument.state import STATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tracelens_instrument.span_in_python import Span, Token

__all__ = ["Span", "Token", "Values"]


if NATIVE:
    from tracelens_instrument import _native

    _native.install(
        state=STATE,
        twin=span_in_python.Span,
        again=span_in_python.reduced,
    )

if not TYPE_CHECKING:
    _used = _native if NATIVE else span_in_python
    Span, Token = _used.Span, _used.Token
