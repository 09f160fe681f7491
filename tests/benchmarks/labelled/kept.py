"""Performs many runs on several processes; keeps what each gave, so that a bench can go on later."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np

    Outcome = dict[str, Any]

Task = TypeVar("Task")
_ROOT: Final = Path(__file__).parents[3]
_TOLD_EVERY: Final = 50  # runs


@dataclass
class Performer:
    """Performs runs; `kept` names the file of outcomes, `until` the end by `time.monotonic`."""

    workers: int = 1
    kept: Path | None = None
    until: float = float("inf")
    known: dict[str, Outcome] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read what is kept; outcomes of other code are no outcomes of this one."""
        if self.kept is None:
            return
        code = _digest()
        if not self.kept.exists():
            self.kept.write_text(json.dumps({"code": code}) + "\n")
        head, *rows = self.kept.read_text().splitlines()
        if json.loads(head) != {"code": code}:
            sys.exit(f"{self.kept} holds outcomes of other code; begin anew with another file.")
        for row in map(json.loads, rows):
            self.known[row["task"]] = row["outcome"]

    def each(self, perform: Callable[[Task], Outcome], todo: Sequence[Task]) -> Iterator[Outcome]:
        """Give the outcome of every task, or of those that are done when the time is over."""
        names = {_name(perform, task): task for task in todo}
        yield from (self.known[name] for name in names if name in self.known)
        left = {name: task for name, task in names.items() if name not in self.known}
        for name, outcome in zip(left, self._performed(perform, [*left.values()]), strict=False):
            self._keep(name, outcome)
            yield outcome

    def _performed(
        self, perform: Callable[[Task], Outcome], todo: Sequence[Task]
    ) -> Iterator[Outcome]:
        if self.workers < 2:
            for task in todo:
                yield perform(task)
                if time.monotonic() > self.until:
                    return
            return
        pool = ProcessPoolExecutor(self.workers, mp_context=get_context("spawn"))
        try:
            for done, outcome in enumerate(pool.map(perform, todo), 1):
                yield outcome
                if done % _TOLD_EVERY == 0:
                    sys.stderr.write(f"\r{done} of {len(todo)} runs ")
                    sys.stderr.flush()
                if time.monotonic() > self.until:
                    break
        finally:
            pool.shutdown(cancel_futures=True)
            sys.stderr.write("\n")

    def _keep(self, name: str, outcome: Outcome) -> None:
        if self.kept is not None:
            with self.kept.open("a") as file:
                file.write(json.dumps({"task": name, "outcome": outcome}, default=_plain) + "\n")


def _name(perform: Callable[[Task], Outcome], task: Task) -> str:
    return f"{perform.__module__}{task}"


def _plain(value: np.generic) -> Any:
    """Return a number of numpy as one of Python."""
    return value.item()


def _digest() -> str:
    """Tell the analyses and the generator as they are now from any others."""
    here = Path(__file__).parent
    files = [*(_ROOT / "tracelens").rglob("*.py"), *here.glob("*.py"), here.parent / "planted.py"]
    digest = sha256()
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()
