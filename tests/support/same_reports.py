"""Hold the reports of one checkout against those of another: are they the same, but for their words?

Whoever moves modules, or finds better words, changes no number of any report. The runs are made once;
each checkout explains the very same files with its own Python, and what they wrote is compared:

    python tests/support/same_reports.py generate traces/generated
    python tests/support/same_reports.py write traces/before --generated traces/generated
    python tests/support/same_reports.py write traces/after --generated traces/generated
    python tests/support/same_reports.py compare traces/before traces/after
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import runpy
import sys
import time
from collections import Counter
from contextlib import chdir, redirect_stdout
from hashlib import sha256
from importlib import import_module
from itertools import product, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import tracelens

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECKOUT: Final = Path(tracelens.__file__).resolve().parents[1]
SAMPLES: Final = CHECKOUT / "sample_traces"
# The generator of labelled runs: what goes on the path, where `KINDS` is, and where `setting`.
GENERATOR: Final = (CHECKOUT / "tests", "benchmarks.labelled.kinds", "benchmarks.labelled.setting")
NOISES: Final = tuple(product(("mild", "harsh"), ("lognormal", "pareto")))
RUNS: Final = 200
FIRST_SEED: Final = 2_000_000  # neither of those for tuning nor of those that are published
CUT_TO: Final = 0.6  # of a damaged file
# What a report says in words (docs/report.schema.json); in the plain text everything is words.
PROSE: Final = re.compile(r"(findings|notes)\[\d+\]\.sentence|efficiency\.definition|text")
NUMBER: Final = re.compile(
    r"(?:(?<!\w)[-+])?\d+(?:[.,]\d+)*(?:\s?(?:%|[nµm]?s|min|h|[kMGT]?i?B(?:/s)?|ppm)(?!\w))?"
)
FORMATS: Final = {"json": ".json", "text": ".txt"}
INPUTS: Final = "inputs.json"
EQUAL, WORDS, DIFFERENT = VERDICTS = ("equal", "words only", "different")


def generate(target_folder: Path) -> None:
    """Make runs of 8 ranks, of each kind with each noise, and of 64 ranks, of some kinds."""
    target_folder.mkdir(parents=True)
    path, kinds_at, setting_at = GENERATOR
    sys.path.insert(0, str(path))
    kinds, setting = import_module(kinds_at).KINDS, import_module(setting_at).setting
    small = [(kind, 8, *noise) for kind in kinds for noise in NOISES]
    left = RUNS - len(small)
    large = [(kinds[n * len(kinds) // left], 64, *NOISES[n % len(NOISES)]) for n in range(left)]
    for seed, (kind, ranks, level, family) in enumerate(small + large, FIRST_SEED):
        case = kind.make(setting(ranks, level, family, seed))
        name = re.sub(r"\W+", "-", kind.name.lower()).strip("-")
        folder = target_folder / f"{name}-{ranks}-{level}-{family}"
        case.recording.write(folder)
        if case.damaged is not None:
            file = sorted(folder.iterdir())[case.damaged]
            file.write_bytes(file.read_bytes()[: int(file.stat().st_size * CUT_TO)])


def write(target_folder: Path, generated: Path) -> None:
    """Explain all sample traces and generated runs with the checkout that is installed."""
    sources = {"samples": SAMPLES, "generated": generated.resolve(strict=True)}
    inputs = {}
    for source, runs in sources.items():
        (target_folder / source).mkdir(parents=True)
        for run in sorted(entry for entry in runs.iterdir() if entry.is_dir()):
            name = f"{source}/{run.name}"
            inputs[name] = _digest(run)
            for form, suffix in FORMATS.items():
                (target_folder / f"{name}{suffix}").write_text(
                    _print_report(run, form), encoding="utf-8"
                )
    (target_folder / INPUTS).write_text(json.dumps(inputs, indent=1))
    seconds = time.process_time()
    sys.stdout.write(f"{len(inputs)} runs explained by {CHECKOUT} in {seconds:.0f} s of CPU\n")


def _digest(run: Path) -> str:
    digest = sha256()
    for file in sorted(entry for entry in run.rglob("*") if entry.is_file()):
        digest.update(str(file.relative_to(run)).encode() + file.read_bytes())
    return digest.hexdigest()


def _print_report(run: Path, form: str) -> str:
    """Return what `tracelens analyze` prints; it is called beside the run, so that no path differs."""
    sys.argv = ["tracelens", "analyze", run.name, "--again", "--no-keep", "--format", form]
    with chdir(run.parent), redirect_stdout(io.StringIO()) as out:
        try:
            runpy.run_module("tracelens", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"{' '.join(sys.argv)} in {run.parent}: {end.code}") from end
    return out.getvalue()


def compare(old: Path, new: Path) -> int:
    """Print how many reports are equal, and what differs; return 1 if more than words does."""
    names = {file.relative_to(at) for at in (old, new) for file in at.rglob("*.*")}
    inputs = [json.loads((at / INPUTS).read_text()) for at in (old, new)]
    counts: dict[str, Counter[str]] = {suffix: Counter() for suffix in FORMATS.values()}
    differences = []
    for name in sorted(names - {Path(INPUTS)}):
        verdict, difference = _compare_reports(old / name, new / name)
        old_input, new_input = (of.get(str(name.with_suffix(""))) for of in inputs)
        counts[name.suffix][verdict] += 1
        if verdict == DIFFERENT:
            other = "" if old_input == new_input else " (other trace files)"
            differences.append(f"{name}{other}: {difference}\n")
    heads = "".join(f"{verdict:>12}" for verdict in VERDICTS)
    sys.stdout.write(f"{'reports':8}{heads}\n")
    for suffix, count in counts.items():
        cells = "".join(f"{count[verdict]:>12}" for verdict in VERDICTS)
        sys.stdout.write(f"{suffix[1:]:8}{cells}\n")
    sys.stdout.writelines(["\n", *differences] if differences else [])
    return int(bool(differences) or not names)


def _compare_reports(old: Path, new: Path) -> tuple[str, str]:
    """Return a verdict on two reports, and where they differ first in more than words."""
    if not (old.exists() and new.exists()):
        return DIFFERENT, f"only in {old.parents[1] if old.exists() else new.parents[1]}"
    if old.read_bytes() == new.read_bytes():
        return EQUAL, ""
    spoken = False
    end = ("the end", "")
    for (path, old_value), (there, new_value) in zip_longest(
        _leaves(old), _leaves(new), fillvalue=end
    ):
        if path != there:
            return DIFFERENT, f"{path} -> {there}"
        spoken |= old_value != new_value
        if old_value != new_value and not PROSE.fullmatch(path):
            return DIFFERENT, f"{path}: {old_value} -> {new_value}"
        numbers = zip_longest(
            NUMBER.findall(old_value), NUMBER.findall(new_value), fillvalue="nothing"
        )
        for number, (one, other) in enumerate(numbers, 1):
            if one.split() != other.split():
                return DIFFERENT, f"{path}, its number {number}: {one} -> {other}"
    return (WORDS, "") if spoken else (DIFFERENT, "the same values, laid out otherwise")


def _leaves(file: Path) -> Iterator[tuple[str, str]]:
    """Give all values of a report in order, each with its path."""
    text = file.read_text(encoding="utf-8")
    return _child_leaves(json.loads(text), "") if file.suffix == ".json" else iter([("text", text)])


def _child_leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, entry in value.items():
            yield from _child_leaves(entry, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for number, entry in enumerate(value):
            yield from _child_leaves(entry, f"{path}[{number}]")
    else:
        yield path, json.dumps(value, ensure_ascii=False)


def main() -> int:
    """Do what is asked for."""
    # Rows in one order, by which ties between equally telling requests to servers are broken; and
    # lines of the plain text whole.
    os.environ |= {"POLARS_MAX_THREADS": "1", "COLUMNS": "400"}
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    making = verbs.add_parser("generate", help="make the generated runs, once for all checkouts")
    making.add_argument("place", type=Path, help="a new folder")
    writing = verbs.add_parser("write", help="explain all runs with the installed checkout")
    writing.add_argument("place", type=Path, help="a new folder, for reports")
    writing.add_argument("--generated", type=Path, required=True, help="what `generate` made")
    comparing = verbs.add_parser("compare", help="exit code 1 if more than words differs")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    options = parser.parse_args()
    match options.verb:
        case "generate":
            generate(options.place)
        case "write":
            write(options.place, options.generated)
        case _:
            return compare(options.old, options.new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
