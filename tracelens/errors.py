"""Every error that TraceLens raises; callers catch the root.

TraceLensError
├── InvalidArgument          a call or a command was given something unusable      (exit 2)
├── UnusableInput            a trace cannot be read                                (exit 3)
│   ├── TraceNotFound        no such folder or file
│   ├── EmptyTrace           the folder holds no recorded process
│   ├── NotATrace            a file is not what its name says
│   └── NewerVersion         written by a newer TraceLens
├── MissingExtra             an optional library is not installed                  (exit 4)
└── GateFailed               a check that the user asked for did not hold          (exit 1)

A message has one sentence: what was found, what was expected, what to do next.
"""

from __future__ import annotations


class TraceLensError(Exception):
    """The root of every error of TraceLens; `exit_code` is what the command line returns."""

    exit_code = 3


class InvalidArgument(TraceLensError):
    """A call or a command was given something unusable."""

    exit_code = 2


class UnusableInput(TraceLensError):
    """A trace, or a part of it, cannot be read."""


class TraceNotFound(UnusableInput):
    """There is no such folder or file."""


class EmptyTrace(UnusableInput):
    """The folder holds no recorded process."""


class NotATrace(UnusableInput):
    """A file is not what its name says."""


class NewerVersion(UnusableInput):
    """A file was written by a newer TraceLens than this one."""


class MissingExtra(TraceLensError):
    """An optional library is not installed."""

    exit_code = 4

    @classmethod
    def from_extra(cls, purpose: str, extra: str) -> MissingExtra:
        """Build the sentence that names the extra to install."""
        return cls(
            f"{purpose} needs libraries that are not installed: "
            f"install TraceLens with the extra '{extra}' (pip install -e '.[{extra}]')."
        )


class GateFailed(TraceLensError):
    """A check that the user asked for did not hold."""

    exit_code = 1
