"""Properties that are computed when they are first read, and then kept."""

from __future__ import annotations

import functools
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:
    Value = TypeVar("Value")

    class cached_property(functools.cached_property[Value]):  # noqa: N801 - as in functools
        """One without the lock of Python 3.11, which all objects of a class share.

        Polars reads our sources in a thread of its own. When the events of a trace are filtered and
        become those of another one, that thread reads the property which the first thread is computing,
        and both would wait forever.
        """

        def __init__(self, func: object) -> None:
            """Take the function that computes the value."""
            super().__init__(func)
            self.lock = nullcontext()


__all__ = ["cached_property"]
