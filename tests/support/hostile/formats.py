"""A sound document of each format, of a small run drawn at random, and how it is written to disk."""

from __future__ import annotations

import gzip
import json
import pickle
import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from support.hostile import changes, protobuf
from support.hostile.run import Span, draw_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

EPOCH_NS: Final = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class Input:
    """What a verb is given: a path, and options with which a reader takes it."""

    path: Path
    options: tuple[str, ...] = ()


def by_rank(spans: list[Span]) -> dict[int, list[Span]]:
    """Return spans by rank."""
    spans_of_rank: dict[int, list[Span]] = {}
    for span in spans:
        spans_of_rank.setdefault(span.rank, []).append(span)
    return spans_of_rank


def change_document(document: Any, random: Random) -> Any:
    """Change a document a few times; one of twelve stays sound."""
    for _ in range(random.choice([0, 1, 1, 1, 1, 1, 1, 2, 2, 3, 5, 9])):
        document = changes.change(document, random)
    return document


def save(path: Path, content: bytes, random: Random, *, packed: float = 0.0) -> None:
    """Write a file, one of five with damaged bytes; some are compressed, before or after the damage."""
    if random.random() < 0.2:
        content = changes.damage(content, random)
    if random.random() < packed:
        content = gzip.compress(content, 1)
        if random.random() < 0.1:
            content = changes.damage(content, random)
    path.write_bytes(content)


def as_json(document: Any) -> bytes:
    """Return a document as JSON, with NaN and infinities as Python writes them."""
    return json.dumps(document, default=repr, skipkeys=True).encode("utf-8", "surrogatepass")


def one_or_folder(
    folder: Path,
    name: str,
    documents: dict[int, Any],
    random: Random,
    write: Callable[[Path, Any], None],
) -> Input:
    """Write one file a rank into a folder, or the first rank's alone."""
    documents = {rank: change_document(document, random) for rank, document in documents.items()}
    ranks = sorted(documents)[: random.choice([1, 2, 3, 3, 2000])] or [0]
    if len(ranks) == 1 or random.random() < 0.3:
        path = folder / name.format(ranks[0])
        write(path, documents.get(ranks[0], {}))
        return Input(path, (f"--rank-of={path.name}={ranks[0]}",) if random.random() < 0.5 else ())
    folder = folder / "run"
    folder.mkdir()
    for rank in ranks[:40]:
        write(folder / name.format(rank), documents[rank])
    return Input(folder, tuple(f"--rank-of={name.format(rank)}={rank}" for rank in ranks[:40]))


def kineto(folder: Path, random: Random) -> Input:
    """Files of torch.profiler."""
    spans_of_rank = by_rank(draw_run(random))
    names = {
        "step": "ProfilerStep#{}",
        "reduction": "nccl:all_reduce",
        "update": "Optimizer.step#SGD.step",
    }
    documents = {}
    for rank, spans in spans_of_rank.items():
        events: list[Any] = [
            {"ph": "M", "name": "process_name", "pid": 10, "args": {"name": "python"}}
        ]
        for number, span in enumerate(spans):
            device = span.kind == "reduction"
            event: dict[str, Any] = {
                "ph": "X",
                "cat": "kernel"
                if device
                else "user_annotation"
                if span.kind == "step"
                else "cpu_op",
                "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
                if device
                else names.get(span.kind, span.name).format(span.step),
                "pid": 0 if device else 10,
                "tid": 7 if device else 11,
                "ts": span.start / 1000,
                "dur": (span.end - span.start) / 1000,
                "args": {"External id": number, "Sequence number": number, "correlation": number},
            }
            if device:
                event["args"] |= {
                    "stream": 7,
                    "device": 0,
                    "Collective name": "allreduce",
                    "Seq": span.step,
                    "In msg nelems": 1024,
                    "dtype": "Float",
                    "Group size": len(spans_of_rank),
                    "Process Group Name": "0",
                    "Process Group Ranks": str(list(spans_of_rank)),
                }
                events.append(
                    {
                        "ph": "X",
                        "cat": "cuda_runtime",
                        "name": "cudaLaunchKernel",
                        "pid": 10,
                        "tid": 11,
                        "ts": span.start / 1000 - 5,
                        "dur": 3,
                        "args": {"correlation": number},
                    }
                )
            events.append(event)
        documents[rank] = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "H200"}],
            "distributedInfo": {
                "backend": "nccl",
                "rank": rank,
                "world_size": len(spans_of_rank),
                "pg_config": [
                    {
                        "pg_name": "0",
                        "pg_desc": "default_pg",
                        "backend_config": "cuda:nccl",
                        "ranks": list(spans_of_rank),
                        "pg_size": len(spans_of_rank),
                    }
                ],
            },
            "traceEvents": events,
            "baseTimeNanoseconds": random.choice([0, EPOCH_NS]),
            "traceName": "x.json",
        }
    suffix = random.choice([".json", ".json.gz"])
    return one_or_folder(
        folder,
        "rank{}.pt.trace" + suffix,
        documents,
        random,
        lambda path, document: save(
            path, as_json(document), random, packed=float(suffix.endswith("gz"))
        ),
    )


def viztracer(folder: Path, random: Random) -> Input:
    """Files of VizTracer."""
    names = {
        "step": "train_step (/a/train.py:10)",
        "reduction": "all_reduce (/x/torch/distributed/distributed_c10d.py:9)",
        "update": "step (/x/torch/optim/sgd.py:3)",
        "backprop": "backward (/x/torch/_tensor.py:8)",
    }
    processes = random.choice([1, 1, 1, 2])
    documents = {
        rank: {
            "traceEvents": [
                {
                    "ph": "M",
                    "pid": 5,
                    "tid": 5,
                    "name": "process_name",
                    "args": {"name": "MainProcess"},
                },
                *(
                    {
                        "ph": "X",
                        "cat": "FEE",
                        "pid": 5 + span.step % processes,
                        "tid": 5,
                        "ts": span.start / 1000,
                        "dur": (span.end - span.start) / 1000,
                        "name": names.get(span.kind, f"{span.name} (/a/train.py:{span.step})"),
                        "caller_lineno": 3,
                    }
                    for span in spans
                ),
            ],
            "viztracer_metadata": {"version": "0.16.3", "overflow": False},
            "file_info": {"files": {"/a/train.py": ["import torch", 1]}, "functions": {}},
        }
        for rank, spans in by_rank(draw_run(random)).items()
    }
    return one_or_folder(
        folder, "result{}.json", documents, random, lambda p, d: save(p, as_json(d), random)
    )


def py_spy(folder: Path, random: Random) -> Input:
    """Stacks in Chrome's format, as py-spy writes them."""
    documents = {}
    for rank, spans in by_rank(draw_run(random)).items():
        marks = [
            (time, phase, span)
            for span in spans
            for time, phase in ((span.start, "B"), (span.end, "E"))
        ]
        marks.sort(key=lambda mark: mark[0])
        documents[rank] = [
            {
                "args": {"filename": "/a/train.py", "line": 3},
                "cat": "py-spy",
                "name": span.name,
                "ph": phase,
                "pid": 5,
                "tid": span.thread,
                "ts": time // 1000,
            }
            for time, phase, span in marks
        ]
    return one_or_folder(
        folder, "stacks{}.json", documents, random, lambda p, d: save(p, as_json(d), random)
    )


def speedscope(folder: Path, random: Random) -> Input:
    """Stacks in speedscope's format, sampled and evented."""
    documents = {}
    for rank, spans in by_rank(draw_run(random)).items():
        samples = {
            "type": "sampled",
            "name": "MainThread",
            "unit": "nanoseconds",
            "startValue": 0,
            "endValue": sum(s.end - s.start for s in spans),
            "samples": [[0, 1 + i % 2] for i, _ in enumerate(spans)],
            "weights": [s.end - s.start for s in spans],
        }
        marks = sorted(
            (time, phase, s.step % 3)
            for s in spans
            for time, phase in ((s.start, "O"), (s.end, "C"))
        )
        evented = {
            "type": "evented",
            "name": "worker",
            "unit": random.choice(["microseconds", "seconds", "none"]),
            "startValue": 0,
            "endValue": marks[-1][0],
            "events": [{"type": p, "at": t, "frame": f} for t, p, f in marks],
        }
        documents[rank] = {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "name": "x",
            "shared": {
                "frames": [
                    {"name": n, "file": "/a/t.py", "line": 1}
                    for n in ("train_step", "forward", "all_reduce")
                ]
            },
            "profiles": random.choice([[samples], [evented], [samples, evented]]),
            "exporter": "py-spy@0.4",
            "activeProfileIndex": 0,
        }
    return one_or_folder(
        folder, "s{}.speedscope.json", documents, random, lambda p, d: save(p, as_json(d), random)
    )


def dftracer(folder: Path, random: Random) -> Input:
    """Logs of DFTracer: an event a line."""
    names = {
        "data": ("POSIX", "read"),
        "step": ("ai_framework", "step"),
        "reduction": ("COMM", "all_reduce"),
    }
    documents = {}
    for rank, spans in by_rank(draw_run(random)).items():
        documents[rank] = [
            {
                "id": 0,
                "name": "HH",
                "cat": "dftracer",
                "pid": 7,
                "tid": 7,
                "ph": "M",
                "args": {"name": "node0", "value": "ab12"},
            },
            *(
                {
                    "id": i,
                    "name": names.get(s.kind, ("reader", s.kind))[1],
                    "cat": names.get(s.kind, ("reader", s.kind))[0],
                    "pid": 7,
                    "tid": s.thread,
                    "ts": (EPOCH_NS + s.start) // 1000,
                    "dur": (s.end - s.start) // 1000,
                    "ph": "X",
                    "args": {
                        "hhash": "ab12",
                        "ret": 4096,
                        "epoch": 1,
                        "step": s.step,
                        "fname": "/d/x",
                    },
                }
                for i, s in enumerate(spans)
            ),
        ]

    def write(path: Path, document: Any) -> None:
        lines = document if isinstance(document, list) else [document]
        text = b"[\n" + b"\n".join(map(as_json, lines)) + random.choice([b"", b"\n]", b"\n]\n"])
        save(path, text, random, packed=float(path.name.endswith("gz")))

    return one_or_folder(folder, random.choice(["t{}.pfw", "t{}.pfw.gz"]), documents, random, write)


def horovod(folder: Path, random: Random) -> Input:
    """Horovod's timeline: what rank 0 writes about all ranks."""
    spans = draw_run(random)
    world = max((span.rank for span in spans), default=0) + 1
    events: list[Any] = []
    for tensor in range(2):
        events += [
            {"name": "process_name", "ph": "M", "pid": tensor, "args": {"name": f"grad.{tensor}"}},
            {
                "name": "process_sort_index",
                "ph": "M",
                "pid": tensor,
                "args": {"sort_index": tensor},
            },
        ]
    for span in (span for span in spans if span.kind == "reduction" and span.rank == 0):
        ts, end = span.start // 1000, span.end // 1000
        for tensor in range(2):
            events.append({"name": "NEGOTIATE_ALLREDUCE", "ph": "B", "pid": tensor, "ts": ts})
            events += [
                {"name": str(rank), "ph": "X", "pid": tensor, "ts": ts + rank, "dur": 0}
                for rank in range(min(world, 64))
            ]
            events += [
                {"ph": "E", "pid": tensor, "ts": ts + 90},
                {
                    "name": "ALLREDUCE",
                    "ph": "B",
                    "pid": tensor,
                    "ts": ts + 95,
                    "args": {"dtype": "float32", "shape": "[64, 10]"},
                },
                {"name": "NCCL_ALLREDUCE", "ph": "B", "pid": tensor, "ts": ts + 96},
                {"ph": "E", "pid": tensor, "ts": end - 1},
                {
                    "ph": "E",
                    "pid": tensor,
                    "ts": end,
                    "args": {"dtype": "float32", "shape": "[64, 10]"},
                },
            ]
    path = folder / "timeline.json"
    save(path, as_json(change_document(events, random)), random)
    return Input(path)


def flight_recorder(folder: Path, random: Random) -> Input:
    """Dumps of PyTorch's Flight Recorder, pickled; some as JSON."""
    spans_of_rank = by_rank(draw_run(random))
    documents = {}
    for rank, spans in spans_of_rank.items():
        entries = [
            {
                "frames": [{"name": "main", "filename": "/a/t.py", "line": 3}],
                "record_id": i,
                "pg_id": 0,
                "process_group": ("0", "default_pg"),
                "collective_seq_id": i + 1,
                "p2p_seq_id": 0,
                "op_id": i + 1,
                "profiling_name": "nccl:all_reduce",
                "time_created_ns": EPOCH_NS + s.start,
                "input_sizes": [[64, 10]],
                "input_dtypes": ["Float"],
                "output_sizes": [[64, 10]],
                "output_dtypes": ["Float"],
                "state": "completed",
                "time_discovered_started_ns": EPOCH_NS + s.start + 10,
                "time_discovered_completed_ns": EPOCH_NS + s.end,
                "retired": True,
                "timeout_ms": 600000,
                "is_p2p": False,
                "duration_ms": 1.5,
            }
            for i, s in enumerate(s for s in spans if s.kind == "reduction")
        ]
        for entry in entries[len(entries) - random.choice([0, 0, 1]) :]:
            entry |= {"state": "scheduled", "retired": False, "time_discovered_completed_ns": None}
        documents[rank] = {
            "version": "2.10",
            "entries": entries,
            "rank": rank,
            "pg_config": {
                "0": {"name": "0", "desc": "default_pg", "ranks": str(list(spans_of_rank))}
            },
            "pg_status": {
                "0": {
                    "last_enqueued_collective": len(entries),
                    "last_started_collective": len(entries),
                    "last_completed_collective": len(entries),
                }
            },
        }
    written_as_json = random.random() < 0.2

    def write(path: Path, document: Any) -> None:
        content = (
            as_json(document)
            if written_as_json
            else pickle.dumps(document, random.choice([2, 3, 4, 5]))
        )
        save(path, content, random)

    return one_or_folder(folder, "nccl_trace_rank_{}", documents, random, write)


def nsight(folder: Path, random: Random) -> Input:
    """Databases that Nsight Systems exports."""
    documents = {}
    for rank, spans in by_rank(draw_run(random)).items():
        process, thread = 77 << 24, 77 << 24 | 5
        strings = ["ncclDevKernel_AllReduce_Sum_f32", "gemm", "MPI_Allreduce", "MPI_Send"]
        reductions = [s for s in spans if s.kind == "reduction"]
        documents[rank] = {
            "StringIds": [{"id": i, "value": text} for i, text in enumerate(strings)],
            "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": EPOCH_NS}],
            "TARGET_INFO_SYSTEM_ENV": [{"name": "Hostname", "value": "node0"}],
            "PROCESSES": [{"globalPid": process, "pid": 77, "name": "python"}],
            "CUPTI_ACTIVITY_KIND_KERNEL": [
                {
                    "start": s.start,
                    "end": s.end,
                    "deviceId": 0,
                    "streamId": 7,
                    "correlationId": i,
                    "globalPid": process,
                    "shortName": 0,
                    "demangledName": 0,
                }
                for i, s in enumerate(reductions)
            ],
            "CUPTI_ACTIVITY_KIND_MEMCPY": [
                {
                    "start": s.start,
                    "end": s.end,
                    "deviceId": 0,
                    "streamId": 8,
                    "correlationId": 1000 + i,
                    "globalPid": process,
                    "bytes": 4096,
                    "copyKind": 1,
                }
                for i, s in enumerate(spans)
                if s.kind == "data"
            ],
            "CUPTI_ACTIVITY_KIND_RUNTIME": [
                {
                    "start": s.start - 10,
                    "end": s.start,
                    "globalTid": thread,
                    "correlationId": i,
                    "nameId": 1,
                }
                for i, s in enumerate(reductions)
            ],
            "NVTX_EVENTS": [
                {
                    "start": s.start,
                    "end": s.end,
                    "eventType": 59,
                    "text": f"step {s.step}" if s.kind == "step" else s.name,
                    "textId": None,
                    "globalTid": thread,
                }
                for s in spans
            ],
            "MPI_RANKS": [{"globalPid": process, "rank": rank}],
            "MPI_COLLECTIVES_EVENTS": [
                {"start": s.start, "end": s.end, "globalTid": thread, "textId": 2, "size": 4}
                for s in reductions[:3]
            ],
            "MPI_P2P_EVENTS": [
                {
                    "start": s.start,
                    "end": s.end,
                    "globalTid": thread,
                    "textId": 3,
                    "remoteRank": 1,
                    "size": 4,
                }
                for s in reductions[:2]
            ],
        }

    def write(path: Path, document: Any) -> None:
        with sqlite3.connect(path) as base:
            for name, rows in document.items() if isinstance(document, dict) else ():
                _write_table(base, str(name), rows)
        base.close()
        save(path, path.read_bytes(), random)

    return one_or_folder(folder, "report.{}.sqlite", documents, random, write)


def _write_table(base: sqlite3.Connection, name: str, rows: Any) -> None:
    columns = (
        list(dict.fromkeys(str(key) for row in rows or () if isinstance(row, dict) for key in row))
        if isinstance(rows, list)
        else []
    )
    quoted = ", ".join('"{}"'.format(column.replace('"', '""')) for column in columns or ["a"])
    with suppress(sqlite3.Error, ValueError, UnicodeEncodeError):
        base.execute('create table "{}" ({})'.format(name.replace('"', '""'), quoted))
        for row in rows if isinstance(rows, list) else ():
            cells = [row.get(column) for column in columns] if isinstance(row, dict) else []
            simple = [
                cell if isinstance(cell, (int, float, str, bytes, type(None))) else repr(cell)
                for cell in cells
            ]
            simple = [
                max(min(cell, 2**63 - 1), -(2**63)) if isinstance(cell, int) else cell
                for cell in simple
            ]
            with suppress(sqlite3.Error, UnicodeEncodeError):
                marks = ",".join("?" * len(simple))
                base.execute(f'insert into "{name}" values ({marks})', simple)  # noqa: S608 - ours


def xplane(folder: Path, random: Random) -> Input:
    """XSpaces of profilers of XLA."""
    documents = {}
    for rank, spans in by_rank(draw_run(random)).items():
        names = [*dict.fromkeys(span.name for span in spans), "all-reduce.1", "step_num"]

        def line(
            number: int, name: str, chosen: list[Span], number_of_name: dict[str, int]
        ) -> dict[Any, Any]:
            events = [
                {
                    1: number_of_name[s.name],
                    2: s.start * 1000,
                    3: (s.end - s.start) * 1000,
                    4: [{1: 1, 4: s.step}],
                }
                for s in chosen
            ]
            return {1: number, 2: name, 3: EPOCH_NS, 4: events}

        number_of_name = {name: i + 1 for i, name in enumerate(names)}
        metadata = [{1: i, 2: {1: i, 2: name}} for name, i in number_of_name.items()]
        stats = [{1: 1, 2: {1: 1, 2: "step_num"}}]
        documents[rank] = {
            1: [
                {
                    1: 1,
                    2: "/host:CPU",
                    3: [line(1, "python", spans, number_of_name)],
                    4: metadata,
                    5: stats,
                },
                {
                    1: 2,
                    2: "/device:GPU:0",
                    3: [
                        line(
                            2,
                            "Stream #7(Compute)",
                            [s for s in spans if s.kind != "step"],
                            number_of_name,
                        ),
                        line(3, "Steps", [s for s in spans if s.kind == "step"], number_of_name),
                    ],
                    4: metadata,
                    5: stats,
                },
            ],
            4: ["node0"],
        }

    def write(path: Path, document: Any) -> None:
        save(
            path,
            protobuf.encode(
                document if isinstance(document, dict) else {},
                random,
                random.choice([0, 0, 0, 0.02]),
            ),
            random,
        )

    return one_or_folder(folder, "n{}.xplane.pb", documents, random, write)


def perfetto(folder: Path, random: Random) -> Input:
    """Traces of track events in protobuf, with interned names, clocks and defaults."""
    packets: list[Any] = [
        {6: {1: [{1: 6, 2: 1000}, {1: 1, 2: EPOCH_NS}, {1: 64, 2: 5, 3: 1, 4: 1000}], 2: 6}, 10: 1},
        {10: 1, 13: 1, 59: {58: 6, 11: {11: 1000}}},
    ]
    interned: dict[str, int] = {}
    process_name = random.choice(["rank {}", "rank {}", "rank {}", "python", "python {}"])
    for rank, spans in by_rank(draw_run(random)).items():
        track = 1000 + rank
        packets.append({60: {1: track, 3: {1: 50 + rank, 6: process_name.format(rank)}}, 10: 1})
        packets.append({60: {1: track + 5000, 5: track, 4: {1: 50 + rank, 2: 9, 5: "main"}}, 10: 1})
        marks = sorted(
            ((t, kind, s) for s in spans for t, kind in ((s.start, 1), (s.end, 2))),
            key=lambda mark: (mark[0], -mark[1]),
        )
        for time, kind, span in marks:
            name = f"step {span.step}" if span.kind == "step" else span.name
            packet: dict[Any, Any] = {8: time, 10: 1, 11: {9: kind, 11: track + 5000}}
            if kind == 1 and name not in interned:
                interned[name] = len(interned) + 1
                packet[12] = {2: [{1: interned[name], 2: name}]}
            if kind == 1:
                packet[11][10] = interned[name]
            packets.append(packet)
    path = folder / random.choice(["t.pftrace", "t.perfetto-trace", "t.pftrace.gz"])
    document = change_document({1: packets}, random)
    content = protobuf.encode(
        document if isinstance(document, dict) else {}, random, random.choice([0, 0, 0, 0.005])
    )
    save(path, content, random, packed=float(path.name.endswith("gz")))
    answers = tuple(f"--rank-of={path.name}:{50 + rank}={rank}" for rank in range(2))
    return Input(path, random.choice([(), (), answers]))


def scenario(folder: Path, random: Random) -> Input:
    """Scenarios of `simulate`."""
    document: Any = {
        "run": {"workers": 3, "steps": 5, "workers_per_host": 2, "seed": 1, "samples": 8},
        "compute": {
            "data_ms": 1,
            "forward_ms": 2.5,
            "backprop_ms": 4,
            "update_ms": 1,
            "noise": 0.02,
            "spread": 0.01,
            "layers": 2,
            "correlation": 0.1,
        },
        "network": {"gbytes_per_s": 2, "latency_us": 20, "message_us": 1},
    }
    if random.random() < 0.5:
        document["allreduce"] = {
            "algorithm": random.choice(["ring", "tree", "rabenseifner", "ps"]),
            "buckets": [4194304, 4194304],
            "overlap": True,
            "hops": True,
        }
    else:
        document["servers"] = {
            "shards": 2,
            "variables": [4000, 400000, 1000],
            "placement": "greedy",
            "incast": 0.1,
            "apply_ms": 0.2,
        }
    document["fault"] = [{"phase": "backprop", "ranks": [1], "steps": [2, 3], "factor": 1.5}]
    document = change_document(document, random)
    path = folder / "scenario.toml"
    save(
        path,
        _as_toml(document if isinstance(document, dict) else {}).encode("utf-8", "surrogatepass"),
        random,
    )
    return Input(path)


def _as_toml(document: dict[Any, Any]) -> str:
    lines = [
        f"{json.dumps(str(key))} = {_toml_value(value)}"
        for key, value in document.items()
        if not isinstance(value, dict)
    ]
    for key, value in document.items():
        if isinstance(value, dict):
            lines += [
                f"[{json.dumps(str(key))}]",
                *(f"{json.dumps(str(k))} = {_toml_value(v)}" for k, v in value.items()),
            ]
    return "\n".join(lines)


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{json.dumps(str(k))} = {_toml_value(v)}" for k, v in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value if isinstance(value, (bool, int, str)) else repr(value))


def report(folder: Path, random: Random) -> Input:
    """Reports as `analyze --format json` writes them, for `validate`."""
    from support.hostile.seeds import sound_report  # noqa: PLC0415 - made once, by the command itself

    path = folder / "report.json"
    save(path, as_json(change_document(sound_report(), random)), random)
    return Input(path)


def archive(folder: Path, random: Random) -> Input:
    """Archives of OTF2, of extreme values, and with damaged files."""
    from support.hostile.seeds import archive_files  # noqa: PLC0415 - made once, by OTF2's own library

    files = archive_files(random)
    damaged = random.choice(sorted(files))
    for name, content in files.items():
        path = folder / "archive" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        times = random.choice([0, 1, 1, 1, 2, 5]) if name == damaged else 0
        path.write_bytes(_damaged(content, random, times))
    return Input(folder / "archive")


def _damaged(content: bytes, random: Random, times: int) -> bytes:
    for _ in range(times):
        content = changes.damage(content, random)
    return content
