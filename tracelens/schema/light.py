"""Frozen dataclasses that cost little to import and define, for what the recorder needs at its start.

Those of the standard library take 10 ms to import and define a dozen, which type checkers see here. In
these the methods are shared, instead of compiled for each class.

To their users the classes are dataclasses, also for `dataclasses.fields`, `replace` and `asdict`: what
these look for is made when it is first asked for.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import asdict, dataclass, field, replace
    from typing import Any

__all__ = ["asdict", "dataclass", "field", "replace"]

_REQUIRED = object()


class _Factory:
    """A default that is made anew for each instance."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


class _Fields:
    """The fields as `dataclasses` has them: those of a twin of the class, which it makes itself."""

    def __get__(self, instance: object, owner: Any) -> dict[str, Any]:
        import dataclasses  # noqa: PLC0415 - what this module is there to put off

        body: dict[str, Any] = {"__annotations__": owner.__annotations__}
        for name, default in owner.__light_defaults__.items():
            if isinstance(default, _Factory):
                body[name] = dataclasses.field(default_factory=default.make)
            elif default is not _REQUIRED:
                body[name] = default
        twin: Any = dataclasses.dataclass(frozen=True)(type(owner.__name__, (), body))
        owner.__dataclass_fields__ = twin.__dataclass_fields__
        found: dict[str, Any] = twin.__dataclass_fields__
        return found


class _Methods:
    __light_defaults__: dict[str, Any]

    def __init__(self, *values: Any, **named: Any) -> None:
        defaults = self.__light_defaults__
        found = dict(zip(defaults, values, strict=False)) | named
        if len(found) < len(values) + len(named) or not found.keys() <= defaults.keys():
            raise TypeError(f"{type(self).__name__} cannot be made of {values} and {named}")
        for name, default in defaults.items():
            value = found.get(name, default)
            if value is _REQUIRED:
                raise TypeError(f"{type(self).__name__} needs {name}")
            self.__dict__[name] = value.make() if isinstance(value, _Factory) else value

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"cannot assign {value!r} to {name!r}: it is frozen")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"cannot delete {name!r}: it is frozen")

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__.values()))

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__qualname__}({inner})"


_SHARED = ("__init__", "__setattr__", "__delattr__", "__eq__", "__hash__", "__repr__")


def _dataclass(*, frozen: bool) -> Callable[[Any], Any]:
    """Make a class of annotated fields, whose instances never change; it has no such bases."""
    assert frozen

    def decorate(cls: Any) -> Any:
        cls.__light_defaults__ = {
            name: cls.__dict__.get(name, _REQUIRED) for name in cls.__annotations__
        }
        for name in _SHARED:
            setattr(cls, name, _Methods.__dict__[name])
        cls.__dataclass_fields__ = _Fields()
        return cls

    return decorate


def _field(*, default_factory: Callable[[], Any]) -> Any:
    """Give a field a default that is made anew for each instance."""
    return _Factory(default_factory)


def _replace(value: Any, /, **changes: Any) -> Any:
    """Make another instance, with some fields changed."""
    return type(value)(**{**value.__dict__, **changes})


def _asdict(value: Any) -> dict[str, Any]:
    """Return the fields by name; what is in them stays as it is."""
    return dict(value.__dict__)


if not TYPE_CHECKING:
    asdict, dataclass, field, replace = _asdict, _dataclass, _field, _replace
