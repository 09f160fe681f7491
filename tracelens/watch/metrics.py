"""What a watch knows, as metrics that Prometheus fetches from this process."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from tracelens.errors import InvalidArgument, MissingExtra, TraceLensError

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.watch.watcher import News, Watcher

__all__ = ["METRICS", "Metrics"]

# seconds: goodput takes reading the whole recording, so it is measured no more often [policy]
GOODPUT_EVERY_S: Final = 60.0
RETRY_GOODPUT_S: Final = 10.0  # seconds: until it is known it is tried so often [policy]
# bytes: of a larger recording goodput is not measured while the job runs [policy]
MAX_BYTES_FOR_GOODPUT: Final = 1 << 28
MAX_PORT: Final = 65_535  # number: no port has a higher one [definition]

# Names without their prefix: what they are, and their labels. All are gauges but the last.
METRICS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "steps_per_second": ("Pace of the job", ()),
    "usual_steps_per_second": ("Usual range of the pace", ("bound",)),
    "samples_per_second": ("Samples of all ranks", ()),
    "tokens_per_second": ("Tokens of all ranks", ()),
    "step": ("Last step that all ranks have completed", ()),
    "rank_running": ("1 if the process of the rank records", ("rank",)),
    "rank_delay_seconds": ("By how much a rank enters collectives after the others", ("rank",)),
    "rank_straggler": ("1 if the rank is late beyond chance", ("rank",)),
    "stalled": ("1 while no rank makes progress", ()),
    "goodput_ratio": ("Time of kept steps / wall time, of all attempts so far", ()),
    "alarms_total": ("Alarms so far, by kind", ("kind",)),
}


class Metrics:
    """Serves the metrics of a watch at an address, such as ``127.0.0.1:9400``."""

    def __init__(self, address: str) -> None:
        """Begin to serve.

        Raises:
            InvalidArgument: the address has no port, or it is taken.
            MissingExtra: prometheus-client is not installed.
        """
        try:
            from prometheus_client import (  # noqa: PLC0415 - an extra
                CollectorRegistry,
                Counter,
                Gauge,
                start_http_server,
            )
        except ImportError as error:
            raise MissingExtra.from_extra("--prometheus", "monitoring") from error
        host, port = _parse_address(address)
        registry = CollectorRegistry()
        self._gauges = {
            name: Gauge(f"tracelens_{name}", text, labels, registry=registry)
            for name, (text, labels) in METRICS.items()
            if name != "alarms_total"
        }
        text, labels = METRICS["alarms_total"]
        self._alarms = Counter("tracelens_alarms_total", text, labels, registry=registry)
        self._goodput = _Goodput()
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise InvalidArgument(
                f"--prometheus cannot listen on {address} ({error.strerror}): give another port."
            ) from error

    def update(self, watcher: Watcher, news: list[News]) -> None:
        """Show where the job stands now; what is not known is NaN."""
        for news_item in news:
            if news_item.is_alarm:
                self._alarms.labels(news_item.kind).inc()
            if news_item.kind in {"behind", "caught_up"}:
                self._gauges["rank_straggler"].labels(news_item.facts["rank"]).set(
                    news_item.kind == "behind"
                )
        status = watcher.status
        if status is None:
            return
        gauges = self._gauges
        for name, value in (
            ("steps_per_second", status.steps_per_s),
            ("samples_per_second", status.samples_per_s),
            ("tokens_per_second", status.tokens_per_s),
            ("step", status.step),
            ("goodput_ratio", self._goodput.measure(watcher.folder)),
        ):
            gauges[name].set(float("nan") if value is None else value)
        gauges["stalled"].set(watcher.stall is not None)
        for bound, value in zip(
            ("low", "high"), status.usual_steps_per_s or (None, None), strict=True
        ):
            if value is not None:
                gauges["usual_steps_per_second"].labels(bound).set(value)
        for rank in status.ranks:
            gauges["rank_running"].labels(rank.rank).set(not rank.is_over)
            if rank.delay_ns is not None:
                gauges["rank_delay_seconds"].labels(rank.rank).set(rank.delay_ns / 1e9)

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Goodput:
    """Measures goodput now and then in a thread of its own."""

    def __init__(self) -> None:
        self._value: float | None = None
        self._due_s = 0.0
        self._thread: threading.Thread | None = None

    def measure(self, folder: Path) -> float | None:
        """Return the goodput of the last time; begin to measure it again if it is time."""
        is_busy = self._thread is not None and self._thread.is_alive()
        if time.monotonic() >= self._due_s and not is_busy:
            pause_s = RETRY_GOODPUT_S if self._value is None else GOODPUT_EVERY_S
            self._due_s = time.monotonic() + pause_s
            self._thread = threading.Thread(target=self._read, args=(folder,), daemon=True)
            self._thread.start()
        return self._value

    def _read(self, folder: Path) -> None:
        from tracelens import load  # noqa: PLC0415 - a watch without metrics does without
        from tracelens.accounting.life.ledger import measure_life  # noqa: PLC0415 - see above

        try:
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            life = measure_life(load.open(folder)) if size <= MAX_BYTES_FOR_GOODPUT else None
        except (TraceLensError, OSError):  # nothing is recorded yet
            life = None
        self._value = life.goodput if life else None


def _parse_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) <= MAX_PORT:
        raise InvalidArgument(
            f"--prometheus is {address!r}, expected an address with a port, such as 127.0.0.1:9400."
        )
    return host or "127.0.0.1", int(port)
