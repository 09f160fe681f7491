"""A report in TensorBoard, MLflow and W&B: read back with what each of them reads with.

TensorBoard is among the tests' libraries; `make test-trackers` installs the others in an environment of
their own.
"""

import json
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.runs.analysed import RUNS, report

from tracelens.reports import trackers

SLOW = RUNS["slow rank"][0]


def test_metrics_are_the_numbers_of_the_report() -> None:
    metrics = trackers.list_metrics(report(SLOW))
    efficiency = report(SLOW).efficiency
    assert efficiency
    assert metrics["tracelens/efficiency_ratio"] == efficiency.achieved
    assert metrics["tracelens/verdict/state=fault"] == 1
    lost = sum(value for name, value in metrics.items() if name.startswith("tracelens/lost_ratio"))
    assert lost + efficiency.achieved == pytest.approx(1)


def test_tensorboard_reads_metrics_and_report(tmp_path: Path) -> None:
    """Scalars at their step, and the report as text, read by TensorBoard's own reader."""
    tensorboard: ModuleType = pytest.importorskip("torch.utils.tensorboard")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        trackers.log_to_tensorboard(report(SLOW), writer, step=7)
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    expected = trackers.list_metrics(report(SLOW))
    assert set(events.Tags()["scalars"]) == set(expected)
    for name, value in expected.items():
        (scalar,) = events.Scalars(name)
        assert scalar.step == 7
        assert scalar.value == pytest.approx(value, rel=1e-6)
    (text,) = events.Tensors("tracelens/report/text_summary")
    assert b"Rank 2 is a straggler" in text.tensor_proto.string_val[0]


@pytest.mark.filterwarnings("ignore")  # MLflow's own calls of SQLAlchemy
def test_mlflow_stores_metrics_and_verdict(tmp_path: Path) -> None:
    """Metrics, the verdict and both files, in a store of files."""
    mlflow = pytest.importorskip("mlflow", reason="make test-trackers installs it")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    artefact_address = (tmp_path / "artefacts").as_uri()
    experiment = client.create_experiment("runs", artifact_location=artefact_address)
    run = client.create_run(experiment)
    trackers.log_to_mlflow(report(SLOW), client, run.info.run_id, step=3)
    run_data = client.get_run(run.info.run_id).data
    expected = trackers.list_metrics(report(SLOW))
    assert run_data.metrics == {name.replace("=", "."): value for name, value in expected.items()}
    assert run_data.tags["tracelens.verdict"] == report(SLOW).verdict.headline
    kept = {entry.path for entry in client.list_artifacts(run.info.run_id, "tracelens")}
    assert kept == {"tracelens/report.html", "tracelens/report.json"}
    copied = client.download_artifacts(run.info.run_id, "tracelens/report.json")
    assert json.loads(Path(copied).read_text())["verdict"] == "fault"


def read_log_records(log: bytes) -> Iterator[bytes]:
    """Yield the records of a log in LevelDB's format, whose first block is 7 bytes shorter."""
    block, offset, record = (1 << 15) - 7, 0, b""
    while offset + 7 <= len(log):
        left_bytes = (
            block - offset % (1 << 15)
            if offset < block
            else (1 << 15) - (offset - block) % (1 << 15)
        )
        if left_bytes < 7:
            offset += left_bytes
            continue
        size, sort = struct.unpack("<HB", log[offset + 4 : offset + 7])
        record += log[offset + 7 : offset + 7 + size]
        offset += 7 + size
        if sort in (1, 4):  # whole, or the last part
            yield record
            record = b""


def read_records(file: Path, messages: Any) -> list[Any]:
    """Return all records, once the process that writes them has written its last one."""
    for _ in range(300):
        records = [
            messages.Record.FromString(data) for data in read_log_records(file.read_bytes()[7:])
        ]
        if any(record.HasField("exit") for record in records):
            return records
        time.sleep(0.1)
    raise AssertionError(f"no exit in {file}")


def test_wandb_stores_metrics_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, the messages are written to a file in W&B's own format."""
    wandb = pytest.importorskip("wandb", reason="make test-trackers installs it")
    messages = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    monkeypatch.setitem(os.environ, "WANDB_SILENT", "true")
    run = wandb.init(project="runs", dir=str(tmp_path), mode="offline")
    trackers.log_to_wandb(report(SLOW), run)
    run.finish()
    (file,) = tmp_path.rglob("*.wandb")
    history, summary = {}, {}
    for record in read_records(file, messages):
        for item in record.history.item:
            history[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
        for item in record.summary.update:
            summary[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
    for name, value in trackers.list_metrics(report(SLOW)).items():
        assert history[name] == pytest.approx(value)
    assert summary["tracelens/verdict"] == report(SLOW).verdict.headline
