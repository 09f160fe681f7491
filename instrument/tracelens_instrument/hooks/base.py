"""What every framework hook is made of.

A hook module has three functions, and imports its framework when one of them is called:

- ``matches(obj) -> bool``: whether `attach` can do something with this object;
- ``attach(obj, **options) -> Any``: record what the object does; returns what to use from now on;
- ``install(framework) -> None``: record what the framework does, with no change to the program.

Whatever goes wrong inside a hook stays there: what is `attempt`ed, and `guarded` functions, warn once
and return None.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeVar, cast

from tracelens_instrument.failures import let_through, shown, warn_once

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "ATTACHED_VARIABLE",
    "Hook",
    "HookModule",
    "attached",
    "attempt",
    "guarded",
    "note_attached",
    "say_failed",
]

P = ParamSpec("P")
R = TypeVar("R")

ATTACHED_VARIABLE: Final = "TRACELENS_ATTACHED"

_ATTACHED: Final[list[str]] = []


class HookModule(Protocol):
    """The functions that a hook module provides."""

    def matches(self, obj: object) -> bool:
        """Tell whether `attach` can do something with this object."""
        ...

    def attach(self, obj: Any, **options: Any) -> Any:
        """Record what this object does."""
        ...

    def install(self, framework: Any) -> None:
        """Record what the framework does, without a change to the program."""
        ...


@dataclass(frozen=True)
class Hook:
    """A framework that can be recorded: its module here, and the framework's module that calls for it.

    `attaches` says in words what `attach` takes; empty where nothing is attached by hand, and the module
    has `install` only.
    """

    name: str
    module: str
    trigger: str
    attaches: str

    @property
    def wanted(self) -> bool:
        """Whether the program has loaded the framework."""
        return self.trigger in sys.modules

    def load(self) -> HookModule:
        """Import the hook module, and with it maybe the framework."""
        return cast("HookModule", import_module(self.module))

    def install(self, framework: Any) -> None:
        """Install the hook; a failure costs the recording of this framework, never the program."""
        try:
            self.load().install(framework)
        except Exception as error:  # noqa: BLE001 - the user's import of the framework must succeed
            warn_once(f"{self.name} cannot be recorded ({type(error).__name__}: {error}).")


def attempt(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """Call `function`, and keep its failures out of the training code: warn once, return None."""
    try:
        return function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - the border to the user's training code
        say_failed(function, error)
        return None


def guarded(function: Callable[P, R]) -> Callable[P, R | None]:
    """Make a function whose failures stay out of the training code."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
        return attempt(function, *args, **kwargs)

    return call


def say_failed(function: Callable[..., object], error: Exception) -> None:
    """Warn once that a function of ours failed in the midst of training code.

    Raises:
        Exception: `error` itself, if a signal handler of the program raised it.
    """
    let_through(error)
    what = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
    warn_once(f"hook {what} failed and recorded nothing ({shown(error)}).", f"hook {what}")


def note_attached(words: str) -> None:
    """Remember that something was attached, for whoever asks what is recorded.

    `tracelens record` asks by a file that it names in the environment.
    """
    _ATTACHED.append(words)
    asking = os.environ.get(ATTACHED_VARIABLE)
    if asking:
        with contextlib.suppress(OSError):  # on another host there is no such file
            _append(asking, f"{words}\n".encode())


def _append(path: str, line: bytes) -> None:
    """Add a line in one write, so that those of several ranks do not mix; never make the file."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def attached() -> list[str]:
    """What has been attached in this process, in words."""
    return list(_ATTACHED)
