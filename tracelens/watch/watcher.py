"""Watches a job: looks at its ranks, reports news, and writes stalls into the trace folder."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tracelens.accounting.life.orders import describe_order
from tracelens.model.inert import clean
from tracelens.schema.life import (
    Ended,
    Exited,
    Journal,
    Launched,
    Resumed,
    Stalled,
    list_journal_files,
    read_journals,
)
from tracelens.watch import sentences
from tracelens.watch.beginnings import BeginningWatch
from tracelens.watch.exits import ExitWatch
from tracelens.watch.job import LiveJob
from tracelens.watch.pauses import BETWEEN_STEPS, STEP, pause_of_stack
from tracelens.watch.processes import ENDED_STATES, find_children, is_on_this_host, read_state
from tracelens.watch.stacks import StackDumps
from tracelens.watch.stalls import StallDetector
from tracelens.watch.starts import StartWatch
from tracelens.watch.status import PaceHistory, measure_status
from tracelens.watch.stragglers import StragglerWatch

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tracelens.schema.life import Entry
    from tracelens.watch.alerts import AlertCommand
    from tracelens.watch.job import JobProcess
    from tracelens.watch.stalls import Stall
    from tracelens.watch.status import JobStatus

__all__ = ["News", "Watcher"]

# seconds: the job may be started again so long after its last process ended [chosen]
GRACE_S: Final = 10.0
# seconds: stacks that are not there by then are waited for until the next look [policy]
MAX_WAIT_FOR_QUICK_STACKS_S: Final = 0.5
# seconds: stacks that are being taken are waited for when the watch ends [policy]
MAX_WAIT_AT_END_S: Final = 3.0
# processes: the stacks of no more children of a rank are taken [policy]
MAX_LOADER_WORKERS: Final = 4
# seconds: a job whose ranks all record goes on, and is looked at no more often [chosen]
LOOK_EVERY_S_IF_GOING_ON: Final = 10.0
_ORDINARY_STATES: Final = ("running", "sleeping", "traced")


@dataclass(frozen=True)
class News:
    """Something to tell: for people a sentence, for programs the facts. Alarms also run a command."""

    kind: str
    sentence: str
    facts: dict[str, Any]
    is_alarm: bool = False


class Watcher:
    """Looks at a job that records to a folder.

    `status` is where it stood at the last look, `stall` the stall that lasts.
    """

    def __init__(
        self,
        folder: Path,
        alert_command: AlertCommand | None = None,
        *,
        is_parent: bool = False,
        is_writing: bool = True,
    ) -> None:
        """Begin; the folder need not exist yet.

        Args:
            folder: The trace folder.
            alert_command: What is run for each alarm.
            is_parent: The launcher's parent watches: it journals ends, and hands them to `add_ends`.
            is_writing: Stalls and ends are written into the trace folder.
        """
        self._folder = folder
        self._is_writing = is_writing
        self._job = LiveJob(folder)
        self._alert_command = alert_command
        self._detector = StallDetector()
        self._history = PaceHistory()
        self._exits = None if is_parent else ExitWatch()
        self._followed: set[tuple[str, int, int]] = set()
        self._codes: dict[tuple[str, int, int], int | None] = {}
        self._entry: Stalled | None = None
        self._stall_sentence = ""
        self._dumps: StackDumps | None = None
        self._suspicion: tuple[Stall, StackDumps] | None = None
        self._labels_without_stack: dict[str, str] = {}
        self._over_since_s: float | None = None
        self._is_end_of_command_reported = False
        self._begun_ns = time.time_ns()
        self._journal_sizes: tuple[int, ...] = ()
        self._journal: Journal | None = None
        self._stragglers = StragglerWatch()
        self._starts = StartWatch(folder)
        self._beginning = None if is_parent else BeginningWatch(folder, self._begun_ns)
        self._news: list[News] = []
        self._look_due_s = 0.0
        self.stall: Stall | None = None
        self.status: JobStatus | None = None
        self.ended_code: int | None = None

    def look(self) -> list[News]:
        """Look once; return what is new since the last look."""
        now_ns = time.time_ns()
        self._look_due_s = time.monotonic() + LOOK_EVERY_S_IF_GOING_ON
        self._job.look()
        self._follow_processes()
        self.wait(0)
        self._read_ends()
        self.status = measure_status(self._job, self._history, now_ns)
        self._judge(now_ns)
        self._report_absence(now_ns)
        self._report_nothing(now_ns)
        self._report_stragglers()
        if self._alert_command is not None:
            self._alert_command.advance()
        news, self._news = self._news, []
        return news

    def look_if_needed(self) -> list[News]:
        """Look once, unless all ranks go on and the last look was a moment ago.

        To see that a rank has recorded something costs a hundredth of reading what it was.
        """
        is_settled = self.stall is None and self._suspicion is None and not self._news
        if not is_settled or time.monotonic() >= self._look_due_s or not self._job.is_going_on():
            return self.look()
        if self._alert_command is not None:
            self._alert_command.advance()
        return []

    def wait(self, timeout_s: float) -> None:
        """Wait until a process of this host ends, for at most `timeout_s`."""
        if self._exits is not None:
            ended_processes, _ = self._exits.wait(timeout_s)
            self.add_ends(ended_processes)

    def add_ends(self, entries: Iterable[Exited]) -> None:
        """Take note of processes that have ended; each is reported once."""
        for entry in entries:
            identity = (entry.host, entry.pid, entry.incarnation)
            if identity in self._codes:
                continue
            self._codes[identity] = entry.code
            member = self._job.find(identity)
            if member is not None:
                member.look()
            has_failed = entry.code != 0 and not (
                entry.code is None and member is not None and member.is_complete
            )
            sentence = sentences.describe_end(entry, member)
            facts = {"entry": "exited", **asdict(entry)}
            self._report(News("exited", sentence, facts, is_alarm=has_failed))
            if self._exits is not None and not self._is_journaled():
                self._write(entry)

    def _read_ends(self) -> None:
        """Take note of ends in the journals of others, such as of processes that were never seen."""
        if self._exits is None:
            return
        files = list_journal_files(self._folder)
        with suppress(OSError):
            sizes = tuple(file.stat().st_size for file in files)
            if sizes == self._journal_sizes:
                return
            self._journal_sizes = sizes
        entries = read_journals(self._folder)
        for entry in entries:
            if isinstance(entry, Exited):
                if entry.at_ns >= self._begun_ns:
                    self.add_ends([entry])
                else:
                    identity = (entry.host, entry.pid, entry.incarnation)
                    self._codes.setdefault(identity, entry.code)
        self._report_end_of_command(entries)

    def _report_end_of_command(self, entries: Iterable[Entry]) -> None:
        """Report once that the command has ended, if some of its ranks go on."""
        launched, ended = _find_command(entries)
        if launched is None or ended is None or ended.at_ns < launched.at_ns:
            self._is_end_of_command_reported = False
            return
        if self._is_end_of_command_reported:
            return
        self._is_end_of_command_reported = True
        for member in self._job.all_processes:
            member.look()
        running_ranks = [rank for rank, member in self._job.ranks.items() if not member.is_over]
        if running_ranks and ended.at_ns >= self._begun_ns:
            sentence = sentences.describe_end_of_command(launched, ended, running_ranks)
            facts = {"entry": "ended", **asdict(ended), "ranks": running_ranks}
            self._report(News("command_ended", sentence, facts))

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, and is not about to be started again."""
        if self._has_never_recorded:
            return True
        if not self._job.is_over:
            self._over_since_s = None
            return False
        if self._over_since_s is None:
            self._over_since_s = time.monotonic()
        begun_ns = max(member.process.incarnation for member in self._job.all_processes)
        launched, ended = _find_command(read_journals(self._folder))
        if ended is not None and ended.at_ns >= begun_ns:
            self.ended_code = ended.code
            return True
        if launched is not None and read_state(launched.pid, launched.at_ns) not in {
            None,
            "gone",
            "zombie",
        }:
            return False
        return time.monotonic() - self._over_since_s >= GRACE_S

    @property
    def exit_code(self) -> int:
        """1 if a rank failed, the job stands still, or it ended without recording, else 0."""
        if self.stall is not None or self.ended_code or self._has_never_recorded:
            return 1
        return int(any(self._has_failed(member) for member in self._job.ranks.values()))

    def conclude(self) -> list[News]:
        """Report how the job ended, and why the exit code is so; nothing before there is a rank."""
        if self._has_never_recorded:
            sentence = f"the job has ended and recorded nothing; exit code {self.exit_code}"
            return [News("concluded", sentence, {"exit_code": self.exit_code, "code": None})]
        if not self._job.ranks or not (self._job.is_over or self.exit_code):
            return []
        endings_by_rank = {
            rank: sentences.describe_ending(
                self._codes.get(member.identity), is_complete=member.is_complete
            )
            for rank, member in self._job.ranks.items()
            if member.is_over
        }
        entries = read_journals(self._folder)
        state = "the job has ended" if self._job.is_over else "the job has not ended"
        if self.stall is not None:
            state = "the job stands still"
        launched, _ = _find_command(entries)
        order = describe_order([entry for entry in entries if not isinstance(entry, Ended)])
        phrases = [
            *sentences.list_endings(endings_by_rank),
            *sentences.describe_command(launched, self.ended_code),
            *([order] if order else []),
        ]
        reasons = f": {', '.join(phrases)}" if phrases else ""
        facts = {"exit_code": self.exit_code, "code": self.ended_code}
        sentence = f"{state}{reasons}; exit code {self.exit_code}"
        return [News("concluded", sentence, facts)]

    def close(self) -> list[News]:
        """Write what is not written yet and close all files; return the last news."""
        self._read_ends()
        if self._dumps is not None:
            self._dumps.wait(MAX_WAIT_AT_END_S)
            self._end_dumps()
        self._drop_suspicion()
        self._starts.close()
        if self._exits is not None:
            self._exits.close()
        self._job.close()
        news, self._news = self._news, []
        return news

    def _follow_processes(self) -> None:
        """Report processes that have begun, and watch for their end."""
        new_processes = [
            member for member in self._job.all_processes if member.identity not in self._followed
        ]
        for member in new_processes:
            self._followed.add(member.identity)
            if self._exits is not None and is_on_this_host(member.process) and not member.is_over:
                self._exits.add(member.process)
        begun_processes = [member for member in new_processes if not member.is_over]
        if begun_processes:
            facts = {
                "ranks": [member.process.rank for member in begun_processes],
                "pids": [member.process.pid for member in begun_processes],
            }
            restarted = len(self._job.all_processes) - len(begun_processes) >= len(self._job.ranks)
            sentence = sentences.describe_begin(
                begun_processes, self._job.world, restarted=restarted
            )
            self._report(News("began", sentence, facts))

    @property
    def folder(self) -> Path:
        """The trace folder."""
        return self._folder

    def _report_absence(self, now_ns: int) -> None:
        """Report ranks that were started and do not begin to record."""
        absence = self._starts.look(self._job, now_ns)
        if absence is not None:
            self._report(News("absent", sentences.describe_absence(absence), absence.to_facts()))

    def _report_nothing(self, now_ns: int) -> None:
        """Report that nothing was recorded for long, or that the job has ended without recording."""
        if self._beginning is None or self._job.all_processes or self._job.other_hosts:
            return
        nothing = self._beginning.look(now_ns)
        if nothing is not None:
            self._report(News("nothing", sentences.describe_nothing(nothing), nothing.to_facts()))

    @property
    def _has_never_recorded(self) -> bool:
        """Whether all processes of the job are gone, and none of them has recorded."""
        return (
            self._beginning is not None
            and self._beginning.has_ended
            and not self._job.all_processes
        )

    def _report_stragglers(self) -> None:
        """Report ranks that have become late, or are on time again."""
        for change in self._stragglers.look(self._job.ranks):
            kind = "caught_up" if change.is_over else "behind"
            sentence = sentences.describe_straggler(change)
            self._report(News(kind, sentence, asdict(change), is_alarm=True))

    def _judge(self, now_ns: int) -> None:
        """Report a stall that has begun or ended, and stacks that were taken."""
        stall = self._detector.look(self._job, now_ns)
        if self.stall is not None and stall is not self.stall:
            self._resume(self.stall, now_ns)
            self.stall = None
        if stall is not None and self.stall is None and self._is_confirmed(stall):
            self.stall = stall
            self._begin_stall(stall, now_ns)
        if self._dumps is not None and self._dumps.advance() is not None:
            self._end_dumps()

    def _is_confirmed(self, stall: Stall) -> bool:
        """Return True unless stacks show, or may yet show, a pause that no span marks."""
        if stall.reason or stall.pause not in {STEP, BETWEEN_STEPS}:
            return True
        if self._suspicion is None or self._suspicion[0] is not stall:
            self._drop_suspicion()
            dumps = StackDumps(self._find_pids(stall.culprits), is_quick=True)
            dumps.wait(MAX_WAIT_FOR_QUICK_STACKS_S)
            self._suspicion = stall, dumps
        stacks = self._suspicion[1].advance()
        if stacks is None:
            return False
        pauses = [pause_of_stack(frames) for frames in stacks.frames.values()]
        pause = next(filter(None, pauses), None)
        if pause is not None:
            self._detector.excuse(stall, self._job.ranks, pause)
        return pause is None

    def _find_pids(self, ranks: Iterable[int]) -> dict[str, int]:
        """Return the processes of some ranks that can be looked into, by rank."""
        processes = {rank: self._job.ranks[rank] for rank in ranks if rank in self._job.ranks}
        return {
            str(rank): member.process.pid
            for rank, member in processes.items()
            if is_on_this_host(member.process) and member.state not in {"stopped", *ENDED_STATES}
        }

    def _find_loader_workers(self, culprits: set[int]) -> dict[str, int]:
        """Return the children of culprits that wait for data, by rank, pid and name."""
        workers: dict[str, int] = {}
        for rank, member in self._job.ranks.items():
            span = None if member.recording is None else member.recording.innermost
            if rank in culprits and span is not None and span.kind == "data":
                children = find_children(member.process.pid)
                for pid, (name, state) in list(children.items())[:MAX_LOADER_WORKERS]:
                    if state in _ORDINARY_STATES:
                        workers[f"{rank} child {pid} ({clean(name)})"] = pid
        return workers

    def _drop_suspicion(self) -> None:
        if self._suspicion is not None:
            self._suspicion[1].stop("it is not needed any more")
            self._suspicion = None

    def _begin_stall(self, stall: Stall, now_ns: int) -> None:
        """Report a stall: states of processes, the call that ranks wait in, and its step."""
        ranks = self._job.ranks
        states = {
            str(rank): member.state for rank, member in ranks.items() if member.state is not None
        }
        for rank in stall.culprits:
            if rank in ranks and is_on_this_host(ranks[rank].process):
                for pid, (name, state) in find_children(ranks[rank].process.pid).items():
                    if state not in _ORDINARY_STATES:
                        states[f"{rank} child {pid} ({clean(name)})"] = state
        call = stall.call
        steps = [
            member.recording.open_step for member in ranks.values() if member.recording is not None
        ]
        step = max(steps, default=-1) if call is None else call.step
        self._entry = Stalled(
            at_ns=now_ns,
            since_ns=stall.since_ns,
            culprits=[*stall.culprits],
            waiting=[*stall.waiting],
            communicator=stall.communicator,
            op=None if call is None else call.op,
            seq=None if call is None or call.seq < 0 else call.seq,
            step=step if step >= 0 else None,
            states=states,
        )
        others = self._job.other_hosts
        self._stall_sentence = sentences.describe_stall(stall, self._entry, ranks, others)
        facts = {"entry": "stalled", **asdict(self._entry)}
        self._report(News("stalled", self._stall_sentence, facts))
        self._begin_dumps(ranks)

    def _begin_dumps(self, ranks: dict[int, JobProcess]) -> None:
        """Begin to take the stacks of all ranks, the culprits' first."""
        assert self._entry is not None
        culprits = set(self._entry.culprits)
        order = sorted(ranks, key=lambda rank: (rank not in culprits, rank))
        pids = self._find_pids(order)
        pids |= self._find_loader_workers(culprits)
        self._labels_without_stack = {}
        for rank, member in ranks.items():
            if not is_on_this_host(member.process):
                self._labels_without_stack[str(rank)] = f"it runs on {clean(member.process.host)}"
            elif str(rank) not in pids:
                self._labels_without_stack[str(rank)] = f"the process is {member.state}"
        self._dumps = StackDumps(pids)

    def _end_dumps(self, reason: str = "the watch ended before") -> None:
        """Write the stall down, with the stacks that there are, and run the command.

        Args:
            reason: For which those are missing that are not there yet.
        """
        assert self._dumps is not None
        assert self._entry is not None
        stacks = self._dumps.stop(reason)
        self._dumps = None
        reasons = self._labels_without_stack | stacks.reasons
        self._entry = replace(
            self._entry,
            stacks=stacks.frames,
            no_stacks=sentences.join_reasons(reasons) if reasons else None,
        )
        facts = {"entry": "stalled", **asdict(self._entry)}
        sentence = sentences.describe_stacks(self._entry)
        self._report(News("stacks", sentence, facts))
        self._alert("stalled", facts | {"sentence": self._stall_sentence})
        self._write(self._entry)

    def _resume(self, stall: Stall, now_ns: int) -> None:
        """Report that a stall is over, as ranks go on or have ended."""
        if self._dumps is not None:
            self._end_dumps("the stall ended before")
        has_ended = self._detector.has_ended
        ended_ranks = sorted({*stall.culprits, *stall.waiting}) if has_ended else []
        sentence = sentences.describe_resumption(
            stall, now_ns, ended_ranks, is_job_over=self._job.is_over
        )
        facts = {"entry": "resumed", "at_ns": now_ns, "since_ns": stall.since_ns}
        self._report(News("resumed", sentence, facts | {"has_ended": has_ended}, is_alarm=True))
        if not has_ended:
            self._write(Resumed(now_ns, stall.since_ns))

    def _has_failed(self, member: JobProcess) -> bool:
        """Return True if the process of a rank ended otherwise than well, as far as that is known."""
        if not member.is_over:
            return False
        code = self._codes.get(member.identity)
        return code != 0 if code is not None else not member.is_complete

    def _report(self, news: News) -> None:
        self._news.append(news)
        if news.is_alarm:
            self._alert(news.kind, news.facts | {"sentence": news.sentence})

    def _alert(self, kind: str, facts: dict[str, Any]) -> None:
        if self._alert_command is not None:
            self._alert_command.send({"alert": kind, "folder": str(self._folder), **facts})

    def _write(self, entry: Entry) -> None:
        """Append an entry to the journal, unless another watch has written down the same stall."""
        if not self._is_writing:
            return
        with suppress(OSError):  # a folder that this user may not write to is watched all the same
            if isinstance(entry, Stalled | Resumed) and any(
                isinstance(known, type(entry)) and known.since_ns == entry.since_ns
                for known in read_journals(self._folder)
            ):
                return
            if self._journal is None:
                self._journal = Journal(self._folder)
            self._journal.append(entry)

    def _is_journaled(self) -> bool:
        """Return True if a `record` that still runs writes down how processes end."""
        launched, ended = _find_command(read_journals(self._folder))
        return launched is not None and (ended is None or ended.at_ns < launched.at_ns)


def _find_command(entries: Iterable[Entry]) -> tuple[Launched | None, Ended | None]:
    """Return a journal's last launch of a command, and the last end of one."""
    launched: Launched | None = None
    ended: Ended | None = None
    for entry in entries:
        if isinstance(entry, Launched):
            launched = entry
        elif isinstance(entry, Ended):
            ended = entry
    return launched, ended
