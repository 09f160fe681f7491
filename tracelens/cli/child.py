"""Run a command as if nothing stood between it and whoever started us.

It gets our terminal, our open files (an MPI launcher talks to its ranks through one) and the signals
that are sent to us.
"""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any, Final, Self

from tracelens.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["run_child"]

_PASSED_ON: Final = ("SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_FROM_KEYBOARD: Final = ("SIGINT", "SIGQUIT")


def run_child(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run to the end and return the exit code; killed by a signal it is 128 + its number, as in a shell.

    Raises:
        InvalidArgument: the command cannot be started.
    """
    with _Relay() as relay:
        try:
            child = subprocess.Popen(command, env=environment, close_fds=False)
        except OSError as error:
            raise InvalidArgument(
                f"the command {command[0]!r} cannot be started ({error.strerror}): "
                "give the program that runs it, as in `-- bash script.sh`."
            ) from error
        with child:
            relay.to(child)
            code = child.wait()
    return code if code >= 0 else 128 - code


class _Relay:
    """Passes signals on to a child; one that came before there was a child is passed on later.

    What we were told to ignore (`nohup`) stays ignored, by the child as well.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for name in _PASSED_ON:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def to(self, child: subprocess.Popen[bytes]) -> None:
        """Pass signals on to this child from now on."""
        self._child = child
        while self._early:
            child.send_signal(self._early.pop(0))

    def _receive(self, number: int, _frame: object) -> None:
        if signal.Signals(number).name in _FROM_KEYBOARD and _in_foreground():
            return  # Ctrl-C reaches the whole foreground group, so the child has it already
        if self._child is None:
            self._early.append(number)
        else:
            self._child.send_signal(number)


def _in_foreground() -> bool:
    """Tell whether a key pressed in our terminal becomes a signal to us."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
