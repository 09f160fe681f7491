"""Who ended a command: what the journal of `record` knows of signals and exit codes."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

from tracelens.model.inert import clean
from tracelens.schema.life import Ended, Launched, Signalled

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens.schema.life import Entry

__all__ = ["describe_exit_code", "describe_order"]

_TIMEOUT: Final = "timeout"  # the program of coreutils
_EXIT_CODE_OF_TIMEOUT: Final = 124
_EXIT_CODE_OF_SIGNAL: Final = 128  # a shell adds the number of the signal


def describe_order(journal: Iterable[Entry]) -> str | None:
    """Say who ended the last command of a journal from outside; None if nothing tells.

    Args:
        journal: Entries by time.
    """
    order = name = None
    for entry in journal:
        if isinstance(entry, Launched):
            order, name = None, entry.command or "the command"
        elif isinstance(entry, Signalled) and order is None:
            order = _describe_signal(entry)
        elif isinstance(entry, Ended) and order is None:
            order = _describe_end(name or "the command", entry.code)
    return order


def describe_exit_code(code: int) -> str:
    """Return an exit code as a predicate, with the signal that it stands for; below 0 it is a signal."""
    if code < 0:
        return f"was killed by {_name_signal(-code) or f'signal {-code}'}"
    name = _name_signal(code - _EXIT_CODE_OF_SIGNAL)
    return f"ended with exit code {code}{f' ({name})' if name else ''}"


def _describe_signal(entry: Signalled) -> str:
    if entry.is_key:
        keys = {"SIGINT": "Ctrl-C", "SIGQUIT": "Ctrl-\\"}
        return f"by {keys.get(entry.signal, clean(entry.signal))}"
    sender = ", whose parent is `timeout`" if entry.parent == _TIMEOUT else ""
    return f"by {clean(entry.signal)} to `record`{sender}"


def _describe_end(name: str, code: int) -> str | None:
    """Say who ended the command if its exit code tells; ranks may outlive a launcher that was killed."""
    if code == _EXIT_CODE_OF_TIMEOUT:
        return f"by `timeout` ({clean(name)} {describe_exit_code(code)})"
    if _name_signal(code - _EXIT_CODE_OF_SIGNAL):
        return f"with {clean(name)}, which {describe_exit_code(code)}"
    return None


def _name_signal(number: int) -> str | None:
    try:
        return signal.Signals(number).name
    except ValueError:
        return None
