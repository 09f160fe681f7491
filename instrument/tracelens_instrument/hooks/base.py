"""What every framework hook is made of.

A hook module has three functions, and imports its framework when one of them is called:

- ``matches(obj) -> bool``: whether `attach` can do something with this object;
- ``attach(obj, **options) -> Any``: record what the object does; returns what to use from now on;
- ``install(framework) -> None``: record what the framework does, with no change to the program.

Whatever goes wrong inside a hook stays there: what is `attempt`ed, and `guarded` functions, warn once
and return None. Both ends of messages count them alike (`MessageNumbers`), so that they can be matched.
"""

from __future__ import annotations

import functools
import itertools
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, cast

from tracelens_instrument.core.attachments import note_used
from tracelens_instrument.core.failures import reraise_if_handlers, short_repr, warn_once

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Hook", "HookModule", "MessageNumbers", "Switch", "attempt", "guarded", "warn_failed"]
P = ParamSpec("P")
R = TypeVar("R")


class MessageNumbers:
    """Counts the messages of one communicator apart by direction, peer and tag."""

    def __init__(self) -> None:
        self._counter_by_message_kind: dict[tuple[str, int, int], Callable[[], int]] = {}

    def next_number(self, op: str, peer: int, tag: int) -> int:
        """Return the number of a message to (``send``) or from (``recv``) a peer with a tag."""
        key = (op, peer, tag)
        count = self._counter_by_message_kind.get(key)
        if count is None:  # setdefault, because threads may send side by side
            count = self._counter_by_message_kind.setdefault(key, itertools.count().__next__)
        return count()


class HookModule(Protocol):
    """The functions that a hook module provides."""

    def matches(self, obj: object) -> bool:
        """Return True if `attach` can do something with this object."""

    def attach(self, obj: Any, **options: Any) -> Any:
        """Record what this object does."""

    def install(self, framework: Any) -> None:
        """Record what the framework does, without a change to the program."""


@dataclass(frozen=True)
class Hook:
    """A framework that can be recorded: its module here, and the framework's module that calls for it.

    `attachable_objects` says in words what `attach` takes; empty where nothing is attached by hand,
    and the module has `install` only.
    """

    framework_name: str
    module_name: str
    framework_module: str
    attachable_objects: str

    @property
    def is_framework_loaded(self) -> bool:
        """Whether the program has loaded the framework."""
        return self.framework_module in sys.modules

    def load(self) -> HookModule:
        """Import the hook module, and with it maybe the framework."""
        return cast("HookModule", import_module(self.module_name))

    def install(self, framework: Any) -> None:
        """Install the hook; a failure costs the recording of this framework, never the program."""
        note_used(self.framework_name)
        try:
            self.load().install(framework)
        except Exception as error:  # noqa: BLE001 - the user's import of the framework must succeed
            warn_once(
                f"{self.framework_name} cannot be recorded ({type(error).__name__}: {error})."
            )


class Switch:
    """Says whether something was done that is done once in a process, such as to wrap a method."""

    def __init__(self) -> None:
        self.is_on = False

    def turn_on_if_off(self) -> bool:
        """Turn the switch on permanently; return True if it was off."""
        was, self.is_on = self.is_on, True
        return not was


def attempt(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """Call `function`, and keep its failures out of the training code: warn once, return None."""
    try:
        return function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - the border to the user's training code
        warn_failed(function, error)
        return None


def guarded(function: Callable[P, R]) -> Callable[P, R | None]:
    """Make a function whose failures stay out of the training code."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
        return attempt(function, *args, **kwargs)

    return call


def warn_failed(function: Callable[..., object], error: Exception) -> None:
    """Warn once that a function of ours failed in the midst of training code.

    Raises:
        Exception: `error` itself, if a signal handler of the program raised it.
    """
    reraise_if_handlers(error)
    module_name = function.__module__.removeprefix("tracelens_instrument.hooks.")
    hook_name = f"{module_name}.{function.__name__}"
    warn_once(
        f"hook {hook_name} failed and recorded nothing ({short_repr(error)}).", f"hook {hook_name}"
    )
