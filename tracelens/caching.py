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
        """A cached property without the lock of Python 3.11, which all objects of a class share.

        Polars reads our sources in a thread of its own. While one thread computes the property of one
        object, that thread may need the same property of another object: both would wait forever.
        """

        def __init__(self, func: object) -> None:
            """Take the function that computes the value of an object."""
            super().__init__(func)
            self.lock = nullcontext()


__all__ = ["cached_property"]
