"""Which rank of an attempt failed first, how, and which others were only its victims.

The first failure is the one that no other failure explains: the earliest, unless it is the echo of
another one. A rank that the launcher ended by a signal, or whose call failed because its peer had ended,
is a victim.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.accounting.standstill import find_standstill
from tracelens.schema.life import Ended

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.accounting.life.attempts import Attempt, Life
    from tracelens.model.trace import Trace

# ns: failures no further apart may be noted in another order than they happened [chosen]
MAX_APART_OF_ECHO_NS: Final = 2_000_000_000
# How a user, a launcher or a scheduler ends processes.
_ORDERED: Final = ("SIGTERM", "SIGINT", "SIGHUP", "SIGKILL", "KeyboardInterrupt")
# Types of exceptions, and words of messages, that a rank has when its peer has ended.
_ECHO_CAUSES: Final = (
    *("DistBackendError", "DistNetworkError", "DistStoreError"),
    *("ConnectionError", "ConnectionResetError"),
    *("ConnectionAbortedError", "ConnectionRefusedError", "BrokenPipeError", "EOFError"),
)
_ECHO_WORDS: Final = (
    *("connection closed by peer", "connection reset", "broken pipe", "remote process exited"),
    *("socket timeout", "connection refused", "nccl watchdog", "peer closed", "timed out waiting"),
    *("connectfullmesh failed", "waiting for clients", "wait timeout after"),
)
# What gloo and PyTorch put around the reason: the line of their source, and advice.
_SOURCE_LINE: Final = re.compile(r"\[[^\[\]]*\.(?:cc|cpp|cu|h):\d+\] *")
_ADVICE: Final = re.compile(r"\. (?:This is typically caused by|Check the logs of) .*", re.DOTALL)
# What a launcher exits with whose process was killed; torchrun exits with 1.
_CODES_OF_KILLED: Final = (None, 9, -9, 137)


@dataclass(frozen=True)
class Failure:
    """A failed rank; `cause` is an exception's type, a signal's name, ``exit code N`` or ``unknown``.

    `is_first_killed`: it was killed before others that waited for it.
    """

    rank: int
    process: int
    at_ns: int
    cause: str
    message: str = ""
    user_frame: str | None = None
    frames: tuple[str, ...] = ()
    is_out_of_memory: bool = False
    is_first_killed: bool = False

    @property
    def text(self) -> str:
        """How it failed, in words."""
        message = f" ({self.message})" if self.message else ""
        frame = f" at {self.user_frame}" if self.user_frame else ""
        memory = ", out of memory" if self.is_out_of_memory else ""
        cause = "killed or crashed" if self.cause == "unknown" else self.cause
        return f"{cause}{message}{frame}{memory}"

    @property
    def is_ordered(self) -> bool:
        """Whether the process was ended from outside with all others, and not for want of memory."""
        is_alone = self.is_out_of_memory or self.is_first_killed
        return self.cause in _ORDERED and not is_alone

    @property
    def is_echo(self) -> bool:
        """Whether the failure may be the consequence of another rank's failure."""
        message = self.message.lower()
        has_echo_words = any(word in message for word in _ECHO_WORDS)
        return self.is_ordered or self.cause in _ECHO_CAUSES or has_echo_words


def describe_end(failures: Sequence[Failure]) -> str | None:
    """Describe how an attempt ended, in words; None if no rank failed.

    `failures` are its own, the one that explains the others first. Of a job whose ranks were all ended
    from outside none is named: it may have hung, and the code is that of a victim.
    """
    if not failures:
        return None
    if all(failure.is_ordered for failure in failures):
        causes = sorted({failure.cause for failure in failures})
        return f"ended from outside ({', '.join(causes)})"
    return failures[0].text


def find_failures(trace: Trace, attempt: Attempt) -> list[Failure]:
    """Return the failures of an attempt's ranks, the one that explains the others first."""
    failures = [
        _describe_failure(trace, life) for life in attempt.lives if life.failed_ns is not None
    ]
    failures.sort(key=lambda failure: (failure.at_ns, failure.rank))
    if len(failures) > 1 and _was_killed_first(trace, failures):
        failures[0] = replace(failures[0], is_first_killed=True)
    first_failure = next((failure for failure in failures if not failure.is_echo), None)
    if first_failure is None:
        return _begin_with_killed(failures)
    return [first_failure, *(failure for failure in failures if failure is not first_failure)]


def _was_killed_first(trace: Trace, failures: Sequence[Failure]) -> bool:
    """Return True if all ranks were killed, and all others waited for the one that died first.

    An MPI launcher kills all ranks when one was killed.
    """
    codes = [entry.code for entry in trace.journal if isinstance(entry, Ended)]
    is_by_launcher = not codes or codes[-1] in _CODES_OF_KILLED
    first_failure, *later_failures = failures
    is_of_last_attempt = first_failure.process in trace.workers["process"]
    if not is_by_launcher or not is_of_last_attempt:
        return False
    if any(failure.cause != "SIGKILL" for failure in failures):
        return False
    roots = find_standstill(trace).roots
    other_ranks = {failure.rank for failure in later_failures}
    return any(
        root.ranks == (first_failure.rank,) and other_ranks <= {*root.victim_ranks}
        for root in roots
    )


def _begin_with_killed(failures: Sequence[Failure]) -> list[Failure]:
    """Order failures that all may be echoes: a rank that was killed outright ended the others."""
    if not failures:
        return []
    latest_ns = failures[0].at_ns + MAX_APART_OF_ECHO_NS
    near_failures = [failure for failure in failures if failure.at_ns <= latest_ns]
    killed = [failure for failure in near_failures if failure.cause in {"SIGKILL", "unknown"}]
    ordered = [failure for failure in near_failures if failure.is_ordered]
    leading_failure = [*killed, *ordered, failures[0]][0]
    return [leading_failure, *(failure for failure in failures if failure is not leading_failure)]


def _describe_failure(trace: Trace, life: Life) -> Failure:
    """Describe the failure of a process by its own notes, or by its exit code without any."""
    is_of_process = (pl.col("process") == life.process) & pl.col("thread").is_null()
    notes = [*trace.endings.filter(is_of_process).sort("at_ns").iter_rows(named=True)]
    # A handler that runs at a signal hides the line of the program, which a later note may have.
    with_line = next((note for note in notes if note["user_frame"]), None)
    assert life.failed_ns is not None
    return Failure(
        life.rank,
        life.process,
        life.failed_ns,
        cause=notes[0]["cause"] if notes else _name_exit(life),
        message=_shorten(notes[0]["message"] or "") if notes else "",
        user_frame=with_line["user_frame"] if with_line else None,
        frames=tuple((with_line or {}).get("frames") or ()),
        is_out_of_memory=life.is_out_of_memory,
    )


def _shorten(message: str) -> str:
    """Return the reason in an exception's message as one clause, without a library's own lines."""
    reason = _ADVICE.sub("", _SOURCE_LINE.sub("", message))
    return reason.strip().removesuffix(".").replace(". ", "; ")


def _name_exit(life: Life) -> str:
    """Name how a process ended that noted nothing itself."""
    code = life.exit_code
    if code is None:
        return "unknown"
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
