"""The split of device time is equal in the raw files, in `info` and in the verdict."""

import gzip
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from support.profiles import BEGIN_US, about_job, event, write_ranks

import tracelens as tl
from tracelens.readers.xplane import space
from tracelens.reports.messages import list_verdict_lines
from tracelens.verdicts.recognised import list_facts

FILES: Final = (
    "kineto/hta_nccl_data.json.gz",
    "kineto/hta_ns_resolution_rank0.json.gz",
    "kineto/hta_mi250_rocm.json.gz",
    "nsight/clover.sqlite",
    "nsight/saxpy.sqlite",
    "xplane/jax_conv.xplane.pb",
)
ON_DEVICE: Final = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}


def public_trace(name: str) -> Path:
    paths = [up / "shared/traces" / name for up in Path(__file__).parents[4:6]]
    path = next((candidate for candidate in paths if candidate.exists()), None)
    if path is None:
        pytest.skip(f"{name} of the public traces is not here (../shared/traces)")
    return path


def union(events: list[dict[str, Any]]) -> float:
    """Return for how long any of some events lasts, moment by moment."""
    moments = np.array([(e["ts"], 1) for e in events] + [(e["ts"] + e["dur"], -1) for e in events])
    moments = moments[np.argsort(moments[:, 0])]
    running = np.cumsum(moments[:-1, 1]) > 0
    return float(np.diff(moments[:, 0])[running].sum())


def work_of_profile(file: Path) -> list[dict[str, Any]]:
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    return [e for e in events if e.get("ph") == "X" and e.get("cat") in ON_DEVICE]


def work_of_database(file: Path) -> list[dict[str, Any]]:
    """Return the rows of Nsight's tables of devices; their kernels do not communicate."""
    work = []
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
        tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}
        for sort in ("KERNEL", "MEMCPY", "MEMSET"):
            table = f"CUPTI_ACTIVITY_KIND_{sort}"
            if table in tables:
                rows = database.execute(f"SELECT start, end FROM {table}")  # noqa: S608 - ours
                work += [{"ts": a, "dur": b - a, "cat": sort, "name": sort} for a, b in rows]
    return work


def work_of_planes(file: Path) -> list[dict[str, Any]]:
    """Return the events on streams of devices, of all devices of the process."""
    events = []
    for plane in space().FromString(file.read_bytes()).planes:
        names = {entry.key: entry.value.name for entry in plane.event_metadata}
        for line in plane.lines if plane.name.startswith("/device:") else ():
            for row in line.events if line.name.startswith("Stream #") else ():
                name, begin_ns = (
                    names[row.metadata_id],
                    line.timestamp_ns + row.offset_ps // 1000,
                )
                sort = "Memcpy" if name.lower().startswith("mem") else "Kernel"
                events.append(
                    {"ts": begin_ns, "dur": row.duration_ps // 1000, "cat": sort, "name": name}
                )
    return events


def work_of(file: Path) -> list[dict[str, Any]]:
    """Return the work of devices in a file, by its format."""
    read = {".sqlite": work_of_database, ".pb": work_of_planes}.get(file.suffix, work_of_profile)
    return read(file)


def split_of(file: Path) -> list[float]:
    """Return the shares of computing, exposed communication and copies from the raw events."""
    work = work_of(file)
    talks = [e for e in work if re.match("(?i)[nr]ccl", e["name"])]
    kernels = [e for e in work if e["cat"].lower() == "kernel" and e not in talks]
    whole = max(e["ts"] + e["dur"] for e in work) - min(e["ts"] for e in work)
    computing, both = union(kernels), union(kernels + talks)
    return [computing / whole, (both - computing) / whole, (union(work) - both) / whole]


@pytest.mark.parametrize("name", FILES)
def test_info_and_verdict_say_what_the_raw_file_does(name: str) -> None:
    """Within a point; what is useful is what the devices compute."""
    file = public_trace(name)
    is_silent = "rocm" in name or "clover" in name or "xplane" in name
    trace = tl.open(file, rank_of={file.name: 0} if is_silent else {})
    report = tl.analyze(trace)
    assert report.efficiency
    assert report.ledger
    shares = report.efficiency.devices
    assert shares
    assert [shares.compute, shares.exposed, shares.copies] == pytest.approx(
        split_of(file), abs=0.01
    )
    assert report.efficiency.achieved == pytest.approx(shares.compute)
    assert report.ledger.useful == pytest.approx(shares.compute)
    (info,) = (text for subject, text in list_facts(trace) if subject == "device")
    assert shares.description in info
    assert dict(list_verdict_lines(report))["Devices"].startswith(
        f"{shares.description} of the time"
    )


def test_a_server_that_decodes_is_bound_by_launches(tmp_path: Path) -> None:
    """Without any phase of training: 18 us of each 800 us are kernels, and no more is useful."""
    events = [
        one
        for n in range(1000)
        for one in (
            event("cpu_op", "aten::mm", BEGIN_US + 800 * n, 700, 100),
            event(
                "cuda_runtime", "cudaLaunchKernel", BEGIN_US + 800 * n + 10, 5, 100, correlation=n
            ),
            event(
                "kernel", "gemv", BEGIN_US + 800 * n + 20, 18, 7, stream=7, device=0, correlation=n
            ),
        )
    ]
    profile = about_job(0, "nccl", world=1) | {"traceEvents": events}
    report = tl.analyze(tl.open(write_ranks(tmp_path, lambda _rank: profile, ranks=1)))
    assert report.verdict.headline.startswith(
        "BOUND BY devices that wait for the host to queue work"
    )
    assert report.efficiency
    assert report.efficiency.achieved == pytest.approx(18 / 800, abs=0.001)
    assert report.efficiency.devices
    assert report.efficiency.devices.idle == pytest.approx(1 - 18 / 800, abs=0.001)
    assert report.efficiency.devices.host_before == {"aten::mm": 1.0}
