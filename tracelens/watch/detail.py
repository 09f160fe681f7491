"""Follows a request for more detail: which ranks have begun, at which step, and which are back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.model.columns import FOREVER
from tracelens.watch.job import LiveJob

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.schema.detail import DetailRequest
    from tracelens.schema.side import DetailChange
    from tracelens.watch.job import JobProcess

__all__ = ["DetailWatch"]


class DetailWatch:
    """Observes whether the ranks of a running job follow a request for another detail.

    `changed_ranks` are those that record closer or did, `returned_ranks` those that have ended it.
    `first_step` and `last_step` are the numbers of whole steps that were recorded closer; null before.
    """

    def __init__(self, folder: Path) -> None:
        self._job = LiveJob(folder)
        self.changed_ranks: dict[int, DetailChange] = {}
        self.returned_ranks: dict[int, DetailChange] = {}
        self.first_step: int | None = None
        self.last_step: int | None = None
        self._job.look()

    @property
    def running_ranks(self) -> list[int]:
        """The ranks on this host that record now."""
        return [rank for rank, member in self._job.ranks.items() if not member.is_over]

    @property
    def other_hosts(self) -> list[str]:
        """Hosts whose ranks record into this folder, too; their changes cannot be seen from here."""
        return sorted(set(self._job.other_hosts.values()))

    def look(self, request: DetailRequest) -> None:
        """Read which ranks have changed since the request."""
        self._job.look()
        for rank, member in self._job.ranks.items():
            changes = _changes_since(member, request.begin_ns)
            if changes:
                self.changed_ranks[rank] = changes[0]
                self._note_steps(member, changes)
            if len(changes) > 1:
                self.returned_ranks[rank] = changes[-1]

    def _note_steps(self, member: JobProcess, changes: list[DetailChange]) -> None:
        """Note the steps that a rank has completed between its changes, as far as they are known."""
        assert member.recording is not None  # a finished file tells no changes
        end_ns = changes[-1].at_ns if len(changes) > 1 else FOREVER
        steps = [
            step.number
            for step in member.recording.steps
            if changes[0].at_ns <= step.start_ns and step.end_ns <= end_ns
        ]
        if steps:
            self.first_step = min(steps) if self.first_step is None else self.first_step
            self.last_step = max(steps)

    def close(self) -> None:
        """Close all files."""
        self._job.close()


def _changes_since(member: JobProcess, begin_ns: int) -> list[DetailChange]:
    """Return changes of detail at or after a wall time."""
    if member.recording is None:
        return []
    return [
        change
        for change in member.recording.detail_changes
        if member.to_wall_ns(change.at_ns) >= begin_ns
    ]
