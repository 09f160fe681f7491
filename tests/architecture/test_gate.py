"""Only the gate opens files of traces; every other opening call is listed with its reason.

What a call opens is not known before it runs, so every call that can open a file is looked at, and those
that open no file of a trace are listed too. `tests/faults/test_every_open.py` watches while traces
are read; calls in C libraries, which it cannot see, are seen here.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
GATE = ("tracelens/schema/gate.py", "tracelens/schema/arrow.py")
# Which take a path, as functions or methods, and read or write what is there.
OPENERS = {
    *("open", "fdopen", "FileIO", "read_text", "read_bytes", "mmap", "memmap", "fromfile"),
    *("memory_map", "OSFile", "input_stream", "open_file", "open_stream", "read_schema"),
    *("read_metadata", "read_table", "ParquetFile", "ParquetDataset", "dataset", "read_pandas"),
    *("connect", "copyfile", "copy2", "copytree", "ZipFile", "GzipFile", "TarFile", "BZ2File"),
    *("LZMAFile", "loadtxt", "genfromtxt", "read_ipc", "read_ipc_stream", "read_parquet"),
    *("read_csv", "read_json", "read_ndjson", "read_csv_batched", "read_excel"),
    *("scan_ipc", "scan_parquet", "scan_csv", "scan_ndjson", "np.load", "shutil.copy"),
}
# What has been through the gate: buffers, and paths that it has let pass.
PASSED = ("map_file(", "read_contents(", "check_path(")
# Which are called so and open no file themselves: runs, browsers, sockets, and what asks the gate.
OTHER = {
    *(
        "Store.open",
        "runs.open",
        "runs().open",
        "served_runs.open",
        "webbrowser.open",
        "probe.connect",
    ),
    *("scan_parquet", "scan_arrow", "load.open", "_SegmentReader.open"),
}

OURS = "a folder that TraceLens made: its marker was looked at"
WRITES = "it writes a new file"
HELD = "a buffer, which came from the gate"
SYSTEM = "it tells of this system, not of a trace"
PACKAGE = "a file of the package"

LISTED: dict[str, dict[str, str]] = {
    "dashboard/tracelens_dashboard/app/glossary.py": {"_file().read_text": PACKAGE},
    "dashboard/tracelens_dashboard/chart_library.py": {"FILE.read_text": PACKAGE},
    "dashboard/tracelens_dashboard/export/report.py": {"(_FOLDER / name).read_text": PACKAGE},
    "dashboard/tracelens_dashboard/runs/tags.py": {"file.open": "the user's own tags, no trace"},
    "tracelens/cli/bug.py": {"os.fdopen": WRITES},
    "tracelens/cli/checks.py": {"_CLOCK_SOURCE.read_text": SYSTEM, "_PTRACE.read_text": SYSTEM},
    "tracelens/cli/record.py": {"os.open": "the terminal"},
    "tracelens/cli/trials.py": {
        "os.open": "/dev/null",
        "mmap.mmap": "memory without a file",
        "Path('/proc/self/statm').read_text": SYSTEM,
    },
    "tracelens/conversion/arrow_file.py": {
        "os.open": "it writes the growing file of a recording, and follows no link",
        "mmap.mmap": "the growing file, which it has open",
        "pa.ipc.open_stream": HELD,
        "pa.ipc.read_schema": HELD,
    },
    "tracelens/conversion/folder.py": {"os.open": WRITES},
    "tracelens/conversion/lock.py": {"os.open": "it locks, reads nothing, and follows no link"},
    "tracelens/conversion/segments.py": {
        "shutil.copyfile": "the growing file, written just before"
    },
    "tracelens/distil/kept_report.py": {"pl.read_ipc": OURS, "file.read_text": OURS},
    "tracelens/exports/native.py": {"pa.ipc.open_stream": "a file that the gate opened"},
    "tracelens/exports/otlp.py": {"draft.open": WRITES},
    "tracelens/exports/perfetto.py": {"draft.open": WRITES},
    "tracelens/exports/speedscope.py": {"draft.open": WRITES},
    "tracelens/exports/table.py": {"file.open": WRITES},
    "tracelens/load.py": {"open": "`tracelens.open`"},
    "tracelens/lod/block_columns.py": {"np.load": OURS},
    "tracelens/lod/files.py": {
        "(folder / _FACTS).read_text": OURS,
        "self._file.read_text": OURS,
        "pl.read_ipc": OURS,
        "pl.scan_parquet": OURS,
    },
    "tracelens/lod/lane_files.py": {"pa.OSFile": OURS, "pa.ipc.open_file": OURS},
    "tracelens/lod/run_data.py": {"(folder / GLANCE_FILE).read_text": OURS},
    "tracelens/lod/step_matrices.py": {"pa.ipc.open_file": OURS, "pa.memory_map": OURS},
    "tracelens/lod/tracks/names.py": {"pl.read_ipc": OURS},
    "tracelens/parallel.py": {"Path(self.path).open": "what a process of the same command left"},
    "tracelens/plugins.py": {"Path(folder, _FILE).read_bytes": "of an installed distribution"},
    "tracelens/readers/native/arrow_file.py": {
        "pa.ipc.open_file": HELD,
        "pa.ipc.open_stream": HELD,
        "pa.ipc.read_schema": HELD,
    },
    "tracelens/readers/nsight/database.py": {
        "sqlite3.connect": "a path that the gate has let pass"
    },
    "tracelens/readers/otf2/unpack.py": {
        "otf2.reader.open": "an archive of which the gate has let every file pass"
    },
    "tracelens/readers/table/reader.py": {
        "pl.scan_csv": "a path that the gate has let pass, or the content",
        "pa.ipc.read_schema": HELD,
    },
    "tracelens/remote/mirror.py": {
        "draft.open": WRITES,
        "system.open": "an address, whose copy the gate opens afterwards",
        "(directory / _STATES).read_text": OURS,
    },
    "tracelens/reports/schema.py": {"_find_file().read_text": PACKAGE},
    "tracelens/schema/host.py": {
        "os.open": WRITES,
        "(_PROC / str(pid) / 'stat').read_text": SYSTEM,
        "(_PROC / 'stat').read_text": SYSTEM,
        "(_PROC / 'sys/kernel/random/boot_id').read_text": SYSTEM,
        "(_PROC / 'self' / 'status').read_text": SYSTEM,
        "(_PROC / 'self' / 'cgroup').read_text": SYSTEM,
        "(group / name).read_text": SYSTEM,
    },
    "tracelens/schema/life.py": {"os.open": WRITES},
    "tracelens/schema/ownership.py": {"os.open": "the marker itself, and it follows no link"},
    "tracelens/simulator/scenario_file.py": {
        "(_PRESET_FOLDER / f'{name}.toml').read_text": PACKAGE,
        "path.read_text": "a scenario that the user wrote, no trace",
    },
    "tracelens/supervisor.py": {
        "mmap.mmap": "memory without a file",
        "Path('/proc/meminfo').read_text": SYSTEM,
    },
    "tracelens/watch/processes.py": {
        "(_PROC / str(pid) / 'cgroup').read_text": SYSTEM,
        "(_PROC / str(pid) / 'comm').read_text": SYSTEM,
        "(_PROC / str(pid) / 'environ').read_text": SYSTEM,
        "(_PROC / str(pid) / 'stat').read_text": SYSTEM,
        "file.read_text": SYSTEM,
        "path.read_text": SYSTEM,
    },
}


def opens(module: Path) -> set[str]:
    """Return the functions that a module calls to open something, but for what the gate let pass."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {ast.unparse(call.func) for call in calls if is_opener(call) and not is_passed(call)}


def is_opener(call: ast.Call) -> bool:
    function = ast.unparse(call.func)
    return function not in OTHER and bool({function, function.rpartition(".")[2]} & OPENERS)


def is_passed(call: ast.Call) -> bool:
    """Return True if the call opens a file object that the gate returned."""
    first = ast.unparse(call.args[0]).removeprefix("pa.BufferReader(") if call.args else ""
    return first.startswith(PASSED)


def modules() -> dict[str, Path]:
    found = [*(ROOT / "tracelens").rglob("*.py"), *(ROOT / "dashboard").rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): path for path in found}


def test_nobody_else_opens_a_file_of_a_trace() -> None:
    """Open it by `schema.gate` or `schema.arrow.mapped`, or list it here and say why not."""
    calls_by_module = {name: opens(path) for name, path in modules().items() if name not in GATE}
    unlisted = {
        name: calls - LISTED.get(name, {}).keys() for name, calls in calls_by_module.items()
    }
    assert {name: calls for name, calls in unlisted.items() if calls} == {}
    vanished_by_module = {
        name: {*calls} - calls_by_module.get(name, set()) for name, calls in LISTED.items()
    }
    assert {name: calls for name, calls in vanished_by_module.items() if calls} == {}


def test_what_would_be_found(tmp_path: Path) -> None:
    """Every way past the gate is detected."""
    past = [
        "open(path)",
        "path.open('rb')",
        "path.read_bytes()",
        "os.open(path, 0)",
        "mmap.mmap(0, 0)",
        "pa.memory_map(path)",
        "pa.ipc.open_file(str(path))",
        "pq.read_metadata(path)",
        "pl.scan_parquet(path)",
        "sqlite3.connect(path)",
        "connect(path)",
        "read_text(path)",
        "gzip.open(path)",
        "zipfile.ZipFile(path)",
        "np.load(path)",
    ]
    module = tmp_path / "past.py"
    module.write_text("\n".join([*past, "pa.ipc.open_file(mapped(path))", "store.load(path)"]))
    assert len(opens(module)) == len(past)
