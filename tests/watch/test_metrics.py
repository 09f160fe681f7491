"""Metrics of a watch: what Prometheus fetches, and the dashboard file that shows it."""

import json
import re
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.watch.commanded import commanded

from tracelens.errors import InvalidArgument
from tracelens.watch.metrics import METRICS, Metrics
from tracelens.watch.watcher import News, Watcher

GRAFANA = Path(__file__).parents[2] / "docs" / "grafana.json"


def find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def fetch(port: int) -> dict[str, list[Any]]:
    """Fetch the metrics as Prometheus does; return the samples by name."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    samples: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample)
    return samples


def test_pace_ranks_and_alarms_are_served(tmp_path: Path) -> None:
    port = find_port()
    metrics, watcher = Metrics(f"127.0.0.1:{port}"), Watcher(tmp_path)
    try:
        with commanded(tmp_path) as process:
            process.tell("for i in range(30): tl.step(i, 4).__enter__().__exit__(None, None, None)")
            news = [
                *watcher.look(),
                News("behind", "rank 0 is late", {"rank": 0}, is_alarm=True),
            ]
            metrics.update(watcher, news)
            samples = fetch(port)
        assert samples["tracelens_step"][0].value == 29
        assert samples["tracelens_steps_per_second"][0].value > 0
        assert samples["tracelens_rank_running"][0].labels == {"rank": "0"}
        assert samples["tracelens_rank_straggler"][0].value == 1
        assert samples["tracelens_alarms_total"][0].labels == {"kind": "behind"}
    finally:
        metrics.close()
        watcher.close()


@pytest.mark.parametrize("address", ["9400x", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:70000"])
def test_address_without_a_port_is_refused(address: str) -> None:
    with pytest.raises(InvalidArgument, match="expected an address with a port"):
        Metrics(address)


def test_taken_port_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InvalidArgument, match="give another port"):
            Metrics(f"127.0.0.1:{taken.getsockname()[1]}")


def test_dashboard_file_asks_for_metrics_that_exist() -> None:
    dashboard = json.loads(GRAFANA.read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for one in expressions for name in re.findall(r"tracelens_(\w+)", one)}
    assert asked == set(METRICS)
