"""Writes XPlane files as profilers of XLA do, with annotations, kernels and what repeats them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tracelens.readers.xplane import space

if TYPE_CHECKING:
    from pathlib import Path

HOST: Final = "/host:CPU"
STEP_MS: Final = 20
_MS: Final = 10**9  # in picoseconds


class Plane:
    """A plane, to which lines are added."""

    def __init__(self, message: Any, name: str) -> None:
        self.message = message
        self.message.name = name
        self._names: dict[str, int] = {}
        self._step = self.message.stat_metadata.add(key=9)
        self._step.value.id, self._step.value.name = 9, "step_num"

    def line(self, name: str, number: int, *events: tuple[str, float, float, int | None]) -> None:
        """Add a line of events: name, begin and length in milliseconds, and the step that it is."""
        line = self.message.lines.add(id=number, name=name, timestamp_ns=1_000)
        for called, begin_ms, length_ms, step in events:
            event = line.events.add(
                metadata_id=self._number(called),
                offset_ps=int(begin_ms * _MS),
                duration_ps=int(length_ms * _MS),
            )
            if step is not None:
                event.stats.add(metadata_id=9, int64_value=step)

    def _number(self, name: str) -> int:
        if name not in self._names:
            self._names[name] = len(self._names) + 1
            entry = self.message.event_metadata.add(key=self._names[name])
            entry.value.id, entry.value.name = self._names[name], name
        return self._names[name]


def training(steps: int = 10, *, host: str = "node0", slow_ms: float = 0.0) -> Any:
    """Return the profile of a process with one device: steps, a fusion and an all-reduce in each."""
    content = space()(hostnames=[host])
    main = Plane(content.planes.add(), HOST)
    length = STEP_MS + slow_ms
    main.line(
        "python",
        1,
        *(("train", step * length, length - 1, step) for step in range(steps)),
        *(("$loop.py:12 step", step * length, 2, None) for step in range(steps)),
    )
    device = Plane(content.planes.add(), "/device:TPU:0")
    compute = 10 + slow_ms
    operations = []
    for step in range(steps):
        begin = step * length + 1
        operations.append(("fusion.12", begin, compute, None))
        operations.append(("all-reduce-start.3", begin + compute, 4, None))
    device.line("XLA Ops", 3, *operations)
    device.line("XLA Modules", 2, *(("jit_step", s * length + 1, 15, None) for s in range(steps)))
    device.line("Steps", 1, *((str(step), step * length + 1, 15, None) for step in range(steps)))
    return content


def write(path: Path, content: Any) -> Path:
    """Write a profile into a file."""
    path.write_bytes(content.SerializeToString())
    return path
