"""Simulated lives of jobs, with the truth about what took their wall time."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from support.runs.lives import MS, WALL_BEGIN_NS, S
from support.runs.traces import span, trace_of

from tracelens.schema.life import Ended, Exited, Launched

if TYPE_CHECKING:
    from tracelens.model.trace import Trace

BEGIN_NS: Final = 1 * S
USUAL_NS: Final = 100 * MS
STEPS: Final = 200
STEPS_PER_CHECKPOINT: Final = 10


class PlantedLife:
    """Writes the events of a life and the truth about it, attempt by attempt.

    `truth` is the wall time of each use, ns.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ns = BEGIN_NS
        self.truth: Counter[str] = Counter()
        self.rows: list[dict[str, Any]] = []
        self.columns: dict[str, Any] = {}
        self.clocks: list[dict[str, Any]] = []
        self.journal: list[Any] = [Launched(at_ns=WALL_BEGIN_NS + self.now_ns)]
        self.saved_step = 0

    def attempt(self, ending: str, steps: int) -> None:
        """Run `steps` steps in a process of its own; `ending` is complete, killed or hung."""
        process = len(self.clocks)
        began_ns = self.now_ns
        self._start(process)
        kept_step = self.saved_step
        step_uses: list[tuple[int, int]] = []
        for number in range(self.saved_step, min(self.saved_step + steps, STEPS)):
            excess_ns, use = 0, "slow_steps"
            if not step_uses:
                excess_ns, use = 2 * S, "first_step"
            elif self.random.random() < 0.1:
                excess_ns = self.random.choice([80 * MS, 400 * MS])
            begin_ns = self.now_ns
            self.truth[use] += excess_ns
            step_uses.append((number, USUAL_NS))
            self.now_ns += USUAL_NS + excess_ns
            self.rows.append(span(process, "step", begin_ns, self.now_ns, step=number))
            if (number + 1) % STEPS_PER_CHECKPOINT == 0:
                self._span(process, "checkpoint", "save", 300 * MS)
                kept_step = number + 1
            if (number + 1) % 25 == 0:
                self._span(process, "user", "evaluation", 500 * MS)
        is_complete = ending == "complete"
        last_saved = STEPS if is_complete else kept_step
        for number, ns in step_uses:
            self.truth["kept" if number < last_saved else "repeated"] += ns
        self.saved_step = kept_step
        if is_complete:
            self._pass("shut_down", 700 * MS)
        elif ending == "killed":
            self._pass("failed_step", 40 * MS)
        else:
            self._pass("failed_step", USUAL_NS)
            self._pass("hanging", 20 * S)
        self._end(process, began_ns, is_complete=is_complete)
        self._pass("shut_down" if is_complete else "dead", 2 * S)

    def _start(self, process: int) -> None:
        """Start, maybe slowly, restore what was saved, and maybe load data for long."""
        self._pass("start_up", self.random.choice([3 * S, 45 * S]))
        if self.saved_step:
            self._span(process, "checkpoint", "restore", 400 * MS)
            self._pass("start_up", 50 * MS)
        if self.random.random() < 0.3:
            self._span(process, "data", "load the index", 20 * S)

    def _pass(self, use: str, ns: int) -> None:
        self.truth[use] += ns
        self.now_ns += ns

    def _span(self, process: int, kind: str, name: str, ns: int) -> None:
        begin_ns = self.now_ns
        uses = {"checkpoint": "checkpoint", "data": "data_preparation", "user": "evaluation"}
        self._pass(uses[kind], ns)
        self.rows.append(span(process, kind, begin_ns, self.now_ns, name))

    def _end(self, process: int, began_ns: int, *, is_complete: bool) -> None:
        row: dict[str, Any] = {
            "host": "host",
            "pid": 100 + process,
            "incarnation": WALL_BEGIN_NS + began_ns + 100 * MS,
            "started_ns": WALL_BEGIN_NS + began_ns,
            "rank": 0,
            "world": 1,
            "complete": is_complete,
            "child": False,
            "first_ns": began_ns + 3 * S,
            "last_ns": self.now_ns,
            "role": "worker",
        }
        for name, value in row.items():
            self.columns.setdefault(name, []).append(value)
        self.clocks.append(
            {
                "process": process,
                "method": "local",
                "monotonic_ns": self.now_ns if is_complete else began_ns,
                "wall_ns": WALL_BEGIN_NS + (self.now_ns if is_complete else began_ns),
                "window_ns": 0,
            }
        )
        self.journal.append(
            Exited(
                at_ns=WALL_BEGIN_NS + self.now_ns,
                host="host",
                pid=100 + process,
                incarnation=row["incarnation"],
                code=0 if is_complete else -9,
            )
        )

    def trace(self) -> Trace:
        """Return the recording of the life."""
        count = len(self.clocks)
        main = [index == count - 1 for index in range(count)]
        trace = trace_of(self.rows, count, clocks=self.clocks, main=main, **self.columns)
        ended = Ended(at_ns=WALL_BEGIN_NS + self.now_ns)
        return trace.with_(journal=(*self.journal, ended))


def plant_life(seed: int) -> PlantedLife:
    """Return a life of up to four failed attempts and a complete one."""
    job = PlantedLife(seed)
    for _ in range(job.random.randrange(5)):
        job.attempt(job.random.choice(["killed", "hung"]), job.random.randrange(12, 45))
    job.attempt("complete", STEPS)
    return job
