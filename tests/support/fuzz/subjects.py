"""What is damaged: each kind of file that a reader reads, how it is changed, and what lies beside it."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from support.fuzz.arrow import changed_file, changed_stream
from support.fuzz.changes import damaged
from support.fuzz.databases import changed_database
from support.fuzz.pickles import changed_pickle
from support.fuzz.profiles import changed_packets, changed_profile
from support.fuzz.records import changed_json, changed_lines, changed_segment
from support.fuzz.tables import changed_csv, changed_feather, changed_parquet

from tracelens.conversion.folder import PROGRESS_FILE
from tracelens.schema.vocabulary import SAMPLES_FOLDER, SIDE_FILE, UNFINISHED_FILE

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

__all__ = ["CORPUS", "SUBJECTS", "Subject", "bases", "list_failing_files"]

CORPUS: Final = Path(__file__).parents[2] / "data/fuzz"
VICTIM: Final = "worker-00001-1001"
_GZIP: Final = b"\x1f\x8b"
LIVE: Final = f"{VICTIM}.segments"


@dataclass(frozen=True)
class Subject:
    """A kind of file: `file` is where it lies in a run, `alone` what is opened of that in most cases.

    `change` makes another file of a sound one. `around` names what else is in the run (see `runs`).
    """

    name: str
    file: str
    change: Callable[[bytes, random.Random], bytes]
    alone: str
    around: str = "recording"

    @property
    def is_live(self) -> bool:
        """Return whether it belongs to segments, which reading may convert."""
        return self.alone == LIVE or self.name == "note"

    @property
    def is_ours(self) -> bool:
        """Return whether the run is a recording of ours."""
        return self.around in {"recording", "half converted"}

    def file_of(self, data: bytes) -> str:
        """Return where a changed file lies: what is compressed has a name of its own."""
        return (
            f"{self.file}.gz" if data.startswith(_GZIP) and self.around == "kineto" else self.file
        )

    def alone_of(self, data: bytes) -> str:
        """Return what is opened of the run, if not all of it."""
        return self.file_of(data) if self.alone == self.file else self.alone


def _changed_events(base: bytes, luck: random.Random) -> bytes:
    """Change trace events in JSON, which may be compressed."""
    changed = changed_json(base, luck)
    if luck.random() < 0.9:
        return changed
    packed = gzip.compress(changed, 1, mtime=0)
    return damaged(packed, luck) if luck.random() < 0.5 else packed


def _changed_event_lines(base: bytes, luck: random.Random) -> bytes:
    """Change events of which each has a line, in a list that is opened on one of its own, or is not."""
    changed = changed_lines(base, luck)
    if luck.random() < 0.7:
        changed = b"[\n" + changed
    if luck.random() < 0.8:
        return changed
    packed = gzip.compress(changed, 1, mtime=0)
    return damaged(packed, luck) if luck.random() < 0.5 else packed


_ALL: Final = (
    Subject("native", f"{VICTIM}.arrow", changed_file, f"{VICTIM}.arrow"),
    Subject("samples", f"{SAMPLES_FOLDER}/{VICTIM}.arrow", changed_stream, f"{VICTIM}.arrow"),
    Subject("segment", f"{LIVE}/000000.seg", changed_segment, LIVE),
    Subject("side", f"{LIVE}/{SIDE_FILE}", changed_lines, LIVE),
    Subject("progress", f"{LIVE}/{PROGRESS_FILE}", changed_json, LIVE, "half converted"),
    Subject("growing", f"{LIVE}/{UNFINISHED_FILE}", changed_file, LIVE, "half converted"),
    Subject("note", f"{VICTIM}.elsewhere", changed_json, ""),
    Subject("feather", "events.arrow", changed_feather, "events.arrow", "nothing"),
    Subject("parquet", "events.parquet", changed_parquet, "events.parquet", "nothing"),
    Subject("csv", "events.csv", changed_csv, "events.csv", "nothing"),
    Subject("otf2", "traces/1.evt", damaged, "traces.otf2", "otf2"),
    Subject("otf2_definitions", "traces.def", damaged, "traces.otf2", "otf2"),
    Subject("kineto", "rank1.json", _changed_events, "rank1.json", "kineto"),
    Subject("dftracer", "trace-1.pfw", _changed_event_lines, "trace-1.pfw", "nothing"),
    Subject("nsight", "rank1.sqlite", changed_database, "rank1.sqlite", "nsight"),
    Subject("xplane", "node1.xplane.pb", changed_profile, "node1.xplane.pb", "nothing"),
    Subject("perfetto", "trace.pftrace", changed_packets, "trace.pftrace", "nothing"),
    Subject("horovod", "timeline.json", _changed_events, "timeline.json", "nothing"),
    Subject("viztracer", "result.json", _changed_events, "result.json", "nothing"),
    Subject("py_spy", "stacks.json", _changed_events, "stacks.json", "nothing"),
    Subject("speedscope", "a.speedscope.json", changed_json, "a.speedscope.json", "nothing"),
    Subject("otlp", "spans.jsonl", changed_lines, "spans.jsonl", "nothing"),
    Subject("otlp_messages", "spans.pb", damaged, "spans.pb", "nothing"),
    Subject("nccl_inspector", "node1-pid7.log", changed_lines, "node1-pid7.log", "nothing"),
    Subject("rocprof", "7_results.json", changed_json, "7_results.json", "nothing"),
    Subject("exported_events", "run.json", _changed_events, "run.json", "nothing"),
    Subject("flight_recorder", "trace_rank_1", changed_pickle, "trace_rank_1", "flight_recorder"),
)
SUBJECTS: Final = {subject.name: subject for subject in _ALL}


def bases(subject: Subject) -> list[bytes]:
    """Return the sound files that are changed."""
    return [path.read_bytes() for path in sorted((CORPUS / subject.name).glob("base-*"))]


def list_failing_files(subject: Subject) -> list[Path]:
    """Return the files that once made a reader fail, and have to be read ever since."""
    return sorted((CORPUS / subject.name).glob("found-*"))
