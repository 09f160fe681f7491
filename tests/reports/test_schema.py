"""docs/report.schema.json: every report keeps to it, and it says no more and no less than the code."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from benchmarks.labelled import kinds_of_pipelines, kinds_of_ranks
from benchmarks.labelled.setting import Setting
from jsonschema import Draft202012Validator
from support.runs.analysed import RUNS, report
from support.runs.damage import write_run
from support.runs.tables import table_of
from support.samples import manifest, sample_report, sample_trace
from support.tiers import mark_slow

from tracelens import Trace, load
from tracelens.accounting.efficiency import CAUSES, SLOW_HOST
from tracelens.load import prepare
from tracelens.model.finding_kinds import KINDS as FINDING_KINDS
from tracelens.model.findings import Finding, Pattern
from tracelens.model.result import REPORT_FORMAT, Report, Summary
from tracelens.model.trace import HostClock, Note
from tracelens.model.verdict import Cause
from tracelens.reports import to_json
from tracelens.reports.schema import find_problems, generate_schema, report_schema
from tracelens.schema.vocabulary import KINDS
from tracelens.simulator.synthetic import Fault, Scenario, generate, random_clocks
from tracelens.verdicts.report import analyze

DOCS = Path(__file__).parents[2] / "docs"
SCHEMA = report_schema()
PHASES = ("data", "forward", "backprop", "update", "checkpoint", "gc", "reduction", "aggregate")
CLOCKS = random_clocks(2)
SAMPLE_NAMES = [sample.name for sample in manifest()]


def as_printed(found: Report) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(to_json.render(found))
    return loaded


def test_the_schema_is_strict() -> None:
    """Of draft 2020-12, and strict: an object with fields has no others, and all of them."""
    assert SCHEMA["$schema"].endswith("2020-12/schema")
    Draft202012Validator.check_schema(SCHEMA)
    for definition in objects(SCHEMA):
        assert definition["additionalProperties"] is False
        if (
            "load_balance" not in definition["properties"]
        ):  # the factors are not there without useful time
            assert definition["required"] == list(definition["properties"])


def test_the_file_is_the_generated_one() -> None:
    """After a change of the kinds: `python -m tracelens.reports.schema`."""
    assert (DOCS / "report.schema.json").read_text(encoding="utf-8") == generate_schema()


def objects(value: Any) -> list[dict[str, Any]]:
    """Return every schema of an object with named fields."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    found = [part for entry in inner for part in objects(entry)]
    return [value, *found] if isinstance(value, dict) and "properties" in value else found


def test_the_words_are_those_of_the_code() -> None:
    """Kinds, patterns, phases, causes and fields are neither fewer nor more."""
    definitions = SCHEMA["$defs"]
    finding = definitions["finding"]["properties"]
    assert finding["kind"]["enum"] == list(FINDING_KINDS)
    assert finding["pattern"]["enum"] == [*get_args(Pattern), None]
    assert finding["phase"]["enum"] == [*KINDS, "uninstrumented", None]
    assert list(finding) == [field.name for field in fields(Finding) if field.name != "fix"]
    assert set(SCHEMA["properties"]["trace"]["properties"]) == {f.name for f in fields(Summary)}
    assert definitions["loss"]["properties"]["cause"]["enum"] == list(get_args(Cause))
    bars = [*CAUSES.values(), "outside"]
    bars.insert(bars.index("late_ranks") + 1, SLOW_HOST)
    assert definitions["bar"]["properties"]["cause"]["enum"] == bars
    assert set(definitions["note"]["properties"]) == {field.name for field in fields(Note)}
    hosts = {field.name for field in fields(HostClock)} - {"clock_domain"}
    assert set(definitions["host"]["properties"]) == hosts
    assert SCHEMA["properties"]["format"] == {"const": REPORT_FORMAT}
    kinds = set(re.findall(r"\w+", str(Note.__doc__).partition("one of")[2].partition(": what")[0]))
    assert kinds - {"and"} == set(definitions["note"]["properties"]["kind"]["enum"])


@pytest.mark.parametrize("name", SAMPLE_NAMES)
def test_reports_of_samples_keep_to_the_schema(name: str) -> None:
    assert find_problems(as_printed(sample_report(name))) == []


@pytest.mark.parametrize("name", mark_slow(SAMPLE_NAMES, quick=("mpi-killed-rank", "ps-hot-shard")))
def test_samples_as_tables(name: str) -> None:
    """So do those of the same runs read from a table without hosts."""
    table = Trace.from_table(table_of(sample_trace(name), with_extras=False).drop("host"))
    assert find_problems(as_printed(analyze(table))) == []


@pytest.mark.parametrize("run", RUNS)
def test_reports_of_simulated_runs_keep_to_the_schema(run: str) -> None:
    assert find_problems(as_printed(report(RUNS[run][0]))) == []


def test_the_report_of_a_pipeline_keeps_to_the_schema() -> None:
    """Its ledger has a cause of its own, the bubble."""
    case = kinds_of_pipelines.staged(kinds_of_ranks.nothing)(
        Setting(8, 40, 2, "mild", "lognormal", 1)
    )
    analyzed = analyze(prepare(case.recording.trace()))
    assert analyzed.ledger
    assert analyzed.ledger.sum_share("bubble") > 0
    assert find_problems(as_printed(analyzed)) == []


@pytest.mark.parametrize("phase", mark_slow(PHASES, quick=("backprop", "gc", "aggregate")))
@pytest.mark.parametrize("hosts", mark_slow([1, 2], quick=[2]))
def test_reports_of_faults_keep_to_the_schema(phase: Any, hosts: int) -> None:
    """A fault in each phase, permanent and intermittent, of one rank and of all, on skewed clocks."""
    faults = (
        Fault(phase, (1,), factor=1.5, extra_ms=9.0),
        Fault(phase, (), steps=(20, 30), extra_ms=9.0, every=3),
    )
    shards = 2 if phase == "aggregate" else 0
    clocks = CLOCKS if hosts == 2 and not shards else ()
    scenario = Scenario(
        ranks=4, ranks_per_host=4 // hosts, steps=50, faults=faults, shards=shards, clocks=clocks
    )
    assert find_problems(as_printed(report(scenario))) == []


def test_broken_and_poor_traces(tmp_path: Path) -> None:
    """Cut off, partly unreadable, without steps, without anything useful, with lost events."""
    victim = write_run(tmp_path)
    victim.write_bytes(victim.read_bytes()[:-900])
    assert find_problems(as_printed(analyze(load.open(tmp_path)))) == []
    victim.write_bytes(b"nothing of a trace")
    assert find_problems(as_printed(analyze(load.open(tmp_path)))) == []
    tables: list[dict[str, Any]] = [
        {"rank": [0], "start_ns": [0], "end_ns": [0]},
        {"rank": [7], "start_ns": [5], "end_ns": [None]},
        {"rank": [0, 9], "start_ns": [5, 9], "end_ns": [9, 5], "kind": ["ps_service", "gc"]},
        {"rank": [0, 1], "start_ns": [5, 9], "end_ns": [9, 12], "kind": ["wait", "barrier"]},
    ]
    for table in tables:
        assert find_problems(as_printed(analyze(Trace.from_table(table)))) == []
    nothing = generate(Scenario(ranks=2, steps=3))
    bare = nothing.with_(events=nothing.events.filter(rank=99))
    assert find_problems(as_printed(analyze(load.prepare(bare)))) == []


def test_what_breaks_the_format_is_found() -> None:
    """Each in a sentence that says where."""
    sound = as_printed(report(RUNS["slow rank"][0]))
    finding = sound["findings"][0]
    broken: dict[str, dict[str, Any]] = {
        "$.format: ": sound | {"format": "tracelens.report/4"},
        "'more' was unexpected": sound | {"more": 1},
        "$.findings[0].kind: 'slow' is not one of": sound
        | {"findings": [finding | {"kind": "slow"}]},
        "$.findings[0].saving: 3 is greater": sound | {"findings": [finding | {"saving": 3}]},
        "$.findings[0].steps: [1] is too short": sound | {"findings": [finding | {"steps": [1]}]},
        "$.ledger: useful and": sound | {"ledger": sound["ledger"] | {"useful": 0.0}},
        "efficiency: achieved and": sound | {"efficiency": sound["efficiency"] | {"achieved": 0.0}},
    }
    for said, bad in broken.items():
        assert any(said in problem for problem in find_problems(bad)), said
    del finding["evidence"]
    assert "'evidence' is a required property" in find_problems(sound)[0]


def test_a_report_of_format_2_is_held_to_it() -> None:
    """It has a table more; what else breaks the format is still found."""
    current = as_printed(report(RUNS["slow rank"][0]))
    budget = {"rank": 0, "gap_ns": 9, "usable_ns": 5, "usable_p10_ns": 1, "share": 0.5}
    old = current | {
        "format": "tracelens.report/2",
        "tables": current["tables"] | {"background": [budget]},
    }
    assert find_problems(old) == []
    assert "'more' was unexpected" in find_problems(old | {"more": 1})[0]
    assert any(
        "'background' was unexpected" in problem
        for problem in find_problems(old | {"format": REPORT_FORMAT})
    )


def test_the_pages_example_keeps_to_the_schema() -> None:
    """The example of docs/report.md keeps to the schema, has every field, and its table every one."""
    page = (DOCS / "report.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    content = json.loads(example)
    assert find_problems(content) == []
    assert content["findings"]
    assert content["clock"]["hosts"]
    assert content["notes"]
    named = {name for part in objects(SCHEMA) for name in part["properties"]}
    assert {name for name in named if f"`{name}`" not in page} == set()


@pytest.mark.parametrize("run", RUNS)
def test_the_tables_are_those_of_the_code(run: str) -> None:
    """Every table is in every report, with the same columns, whether or not it has rows."""
    table_schemas = SCHEMA["properties"]["tables"]["properties"]
    tables = report(RUNS[run][0]).tables
    assert set(table_schemas) == set(tables)
    for name, table in tables.items():
        assert list(table_schemas[name]["items"]["properties"]) == table.columns
