"""How a watch shows what it sees: a line for each change, JSON, or a screen that is drawn anew."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from tracelens.schema.json_text import dumps
from tracelens.watch.sentences import describe_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

    from tracelens.watch.watcher import News, Watcher

__all__ = ["Lines", "output_for", "write_json"]

# share of the usual pace: a pace further outside of its range is told [chosen]
MIN_SHARE_OF_PACE_CHANGE: Final = 0.2


@contextmanager
def output_for(stream: TextIO, *, as_json: bool) -> Iterator[Callable[[Watcher, list[News]], None]]:
    """Yield what shows a look: it is called with the watcher and with what is new.

    It writes JSON if `as_json`, else text for people.
    """
    if as_json:
        yield lambda watcher, news: write_json(stream, watcher, news)
    elif stream.isatty():
        from tracelens.watch.screen import drawing  # noqa: PLC0415 - it needs rich

        with drawing(stream) as draw:
            yield draw
    else:
        yield Lines(stream)


def write_json(stream: TextIO, watcher: Watcher, news: list[News]) -> None:
    """Write what is new and where the job stands, an object a line."""
    rows = [{"kind": item.kind, "sentence": item.sentence, **item.facts} for item in news]
    if watcher.status is not None and watcher.status.ranks:
        facts: dict[str, Any] = asdict(watcher.status)
        status = {"kind": "status", "step": watcher.status.step, **facts}
        rows.append(status | {"is_stalled": watcher.stall is not None})
    stream.writelines(dumps(row) + "\n" for row in rows)
    stream.flush()


class Lines:
    """Writes a line for each piece of news, and for each change of where the job stands."""

    def __init__(self, stream: TextIO, prefix: str = "") -> None:
        self._stream = stream
        self._prefix = prefix
        self._last_change: tuple[tuple[int, ...], str] | None = None

    def __call__(self, watcher: Watcher, news: list[News]) -> None:
        """Write what is new."""
        for item in news:
            self._write(item.sentence)
        change = _find_change(watcher)
        if change is not None and change != self._last_change:
            self._last_change = change
            assert watcher.status is not None
            self._write(describe_status(watcher.status))
        self._stream.flush()

    def _write(self, text: str) -> None:
        moment = time.strftime("%H:%M:%S")
        for line in text.splitlines():
            self._stream.write(f"{self._prefix}{moment} {line}\n")


def _find_change(watcher: Watcher) -> tuple[tuple[int, ...], str] | None:
    """Return the pids of running ranks and the kind of pace; a line is written when these change.

    None where there is no pace to report.
    """
    status = watcher.status
    if status is None or status.steps_per_s is None or watcher.stall is not None:
        return None
    running_pids = tuple(item.pid for item in status.ranks if not item.is_over)
    if not running_pids:
        return None
    if status.usual_steps_per_s is None:
        return running_pids, "first"
    low, high = status.usual_steps_per_s
    if status.steps_per_s < low * (1 - MIN_SHARE_OF_PACE_CHANGE):
        return running_pids, "slower"
    is_faster = status.steps_per_s > high * (1 + MIN_SHARE_OF_PACE_CHANGE)
    return running_pids, "faster" if is_faster else "usual"
