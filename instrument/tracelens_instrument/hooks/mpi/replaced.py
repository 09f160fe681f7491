"""Methods of compiled classes, replaced where they are by functions that record, and put back.

mpi4py's classes are compiled, and Python refuses to assign to them. But their methods lie in a
dictionary, as those of any class do, and what is replaced there is replaced for every object, however it
was made, for subclasses and for calls by way of the class. Objects, types, handles and identities stay
the program's own: communicators and requests are not wrapped.

The dictionary is behind a view, so it is asked of the garbage collector; the interpreter is told
that the class has changed, as code in C that changes a class does.
"""

from __future__ import annotations

import ctypes
import functools
import gc
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Function = Callable[..., Any]
    Make = Callable[[str, Function], Function]

__all__ = ["Replaced"]

_changed: Final = ctypes.pythonapi.PyType_Modified
_changed.argtypes, _changed.restype = [ctypes.py_object], None


class Replaced:
    """What was replaced, and can be put back."""

    def __init__(self) -> None:
        self._replacements: list[tuple[Any, str, Any, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._replacements)

    def replace(self, owners: Iterable[Any], factories: Mapping[str, Make]) -> None:
        """Replace functions by what the factory of their name makes, in these classes or modules.

        What is made passes for the original: it has its name, documentation and signature.
        """
        for owner in owners:
            for name in factories.keys() & vars(owner).keys():
                original = vars(owner)[name]
                if isinstance(original, classmethod):
                    function = original.__func__
                    method = functools.wraps(function)(factories[name](name, function))
                    replacement: Any = classmethod(method)
                else:
                    replacement = functools.wraps(original)(factories[name](name, original))
                self._replacements.append((owner, name, original, replacement))
                _put(owner, name, replacement)

    def restore(self) -> None:
        """Put everything back that is still there."""
        while self._replacements:
            owner, name, original, replacement = self._replacements.pop()
            if vars(owner).get(name) is replacement:
                _put(owner, name, original)


def _put(owner: Any, name: str, value: Any) -> None:
    if not isinstance(owner, type):
        setattr(owner, name, value)
        return
    (methods,) = gc.get_referents(vars(owner))
    methods[name] = value
    _changed(owner)
