"""Profiles of PyTorch 1.8 and 1.9 say the same as today's: all they write on the host is an operator."""

import json
from pathlib import Path
from typing import Any, Final

from support.profiles import gpu_profile

import tracelens as tl

OLD_CATEGORIES: Final = {
    "cpu_op": "Operator",
    "user_annotation": "Operator",
    "kernel": "Kernel",
    "cuda_runtime": "Runtime",
}
OLD_ARGUMENTS: Final = ("device", "stream", "correlation", "context")
STEPS: Final = 6


def in_old_words(content: dict[str, Any]) -> dict[str, Any]:
    """Return a profile as PyTorch 1.8 writes it: nothing of the job, nothing of collectives."""
    for event in content["traceEvents"]:
        event["cat"] = OLD_CATEGORIES[event["cat"]]
        event["args"] = {key: event["args"][key] for key in OLD_ARGUMENTS if key in event["args"]}
        if event["cat"] == "Operator":
            event["args"] |= {"Device": event["pid"], "Trace name": "PyTorch Profiler"}
        event["tid"] = f"stream {event['tid']}" if event["cat"] == "Kernel" else str(event["tid"])
    return {"schemaVersion": 1, "traceEvents": content["traceEvents"]}


def write_and_open(folder: Path, name: str, content: dict[str, Any]) -> tl.Trace:
    file = folder / name
    file.write_text(json.dumps(content))
    return tl.open(file)


def test_steps_and_phases_are_those_of_the_new_dialect(tmp_path: Path) -> None:
    old = write_and_open(tmp_path, "old.json", in_old_words(gpu_profile(0, steps=STEPS)))
    new = write_and_open(tmp_path, "new.json", gpu_profile(0, steps=STEPS))
    assert old.steps["step"].to_list() == new.steps["step"].to_list() == [*range(STEPS)]
    assert old.recognition
    assert not [gap for gap in old.recognition.gaps if "no step is marked" in gap.missing]
    ledgers = [tl.analyze(trace).ledger for trace in (old, new)]
    assert ledgers[0] == ledgers[1]
