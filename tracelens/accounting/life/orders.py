"""Who ended a command: what the journal of `record` knows of signals and exit codes."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

from tracelens.model.inert import clean
from tracelens.schema.life import Ended, Exited, Launched, Signalled

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens.schema.life import Entry

__all__ = ["describe_exit_code", "describe_order"]

_KEYS: Final = {"SIGINT": "Ctrl-C", "SIGQUIT": "Ctrl-\\"}
_TIMEOUT: Final = "timeout"  # the program of coreutils
_EXIT_CODE_OF_TIMEOUT: Final = 124  # number: of the command `timeout` [definition]
_ENDING_SIGNALS: Final = ("SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT")
# ns: a job that still runs this long after a signal was not ended by it [chosen]
MAX_TIME_TO_END_NS: Final = 300 * 10**9
_EXIT_CODE_OF_SIGNAL: Final = 128  # number: a shell adds that of the signal [definition]


def describe_order(journal: Iterable[Entry]) -> str | None:
    """Describe in a clause what ended the last command of a journal from outside; None if nothing tells.

    Args:
        journal: Entries by time.
    """
    signalled: Signalled | None = None
    order, name = None, "the command"
    for entry in journal:
        if isinstance(entry, Launched):
            signalled, order, name = None, None, entry.command or "the command"
        elif isinstance(entry, Signalled) and entry.signal in _ENDING_SIGNALS:
            signalled = entry
        elif isinstance(entry, Exited | Ended):
            if signalled is not None and entry.at_ns - signalled.at_ns <= MAX_TIME_TO_END_NS:
                order = _describe_signal(signalled)
            elif isinstance(entry, Ended):
                order = order or _describe_end(name, entry.code)
    return order


def describe_exit_code(code: int) -> str:
    """Return an exit code as a predicate, with the signal it means; a negative code is a signal."""
    if code < 0:
        return f"was killed by {_name_signal(-code) or f'signal {-code}'}"
    name = _name_signal_of_code(code)
    return f"ended with exit code {code}{f' ({name})' if name else ''}"


def _describe_signal(entry: Signalled) -> str:
    name = clean(entry.signal)
    if entry.is_key:
        return f"{_KEYS.get(name, name)} in the terminal of `record`"
    sender = ", and its parent is `timeout`" if entry.parent == _TIMEOUT else ""
    return f"`record` got {name}{sender}"


def _describe_end(name: str, code: int) -> str | None:
    """Describe how the command ended if its exit code tells who did it."""
    ending = f"{clean(name)} {describe_exit_code(code)}"
    if code == _EXIT_CODE_OF_TIMEOUT:
        return ending if name == _TIMEOUT else f"{ending}, as `timeout` does"
    return ending if _name_signal_of_code(code) else None


def _name_signal(number: int) -> str | None:
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


def _name_signal_of_code(code: int) -> str | None:
    """Return the name of the signal that a shell reports by this exit code, or None."""
    return _name_signal(code - _EXIT_CODE_OF_SIGNAL)
