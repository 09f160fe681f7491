"""Whether a report names what `tracelens whatif` says would save a tenth of the job or more.

The runs are the samples and simulated jobs with a planted loss (`benchmarks.shapes`). Of each run these
edits are asked: every rank as fast as its peers, no time in data loading, garbage collection and
checkpoints, reductions beside backprop, and twice the bandwidth. An edit counts if its answer is
reliable and saves a tenth. The report must name the ranks, the phase or
the communication that the edit is about, in its first lines or in a finding.

Run: make bench NAME=agreement [ARGS="--runs 200 --seed 1"]
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.quick import parse_quick
from benchmarks.shapes.bench import Case
from benchmarks.shapes.noise import FAMILIES
from support.runs.planted_losses import SHAPES, list_rows, plant, read_rows

import tracelens as tl
from tracelens.errors import TraceLensError
from tracelens.replay.whatif import Replay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.model.result import Report
    from tracelens.model.trace import Trace

SAMPLES: Final = Path(__file__).parents[2] / "sample_traces"
MIN_SAVING: Final = 0.10  # of the job: an edit that saves as much must be in the report [policy]
SIZES: Final = (10, 15, 30, 60)
RANKS: Final = (2, 3, 4, 8)
# What a report may say of an edit; a rank is looked for in the findings, too.
WORDS: Final = {
    "phase:data=0": ("data",),
    "phase:gc=0": ("garbage collection", "gc"),
    "phase:checkpoint=0": ("checkpoint",),
    "overlap=on": ("communication", "reduction", "overlap", "transfer", "bandwidth", "link"),
    "bandwidth*2": ("communication", "reduction", "transfer", "bandwidth", "link", "bytes"),
}


def draw_runs(samples: int, runs: int, seed: int) -> Iterator[tuple[str, Trace]]:
    """Return the first samples, and some simulated jobs."""
    for folder in sorted(path for path in SAMPLES.iterdir() if path.is_dir())[:samples]:
        yield folder.name, tl.open(folder)
    draw = random.Random(seed)
    names, run_index = sorted(SHAPES), 0
    while run_index < runs:
        name, ranks = draw.choice(names), draw.choice(RANKS)
        if ranks < SHAPES[name].fewest_ranks:
            continue
        size, family = draw.choice(SIZES), draw.choice(sorted(FAMILIES))
        case = Case(name, ranks, size, family, draw.randrange(1000))
        planted = plant(case)
        if planted is not None:
            run_index += 1
            yield case.label, read_rows(list_rows(planted.job))


def list_large_edits(trace: Trace) -> list[tuple[str, float]]:
    """Return the edits that save a tenth, and what each saves."""
    replay = Replay.from_trace(trace)
    edits = [f"rank:{rank}=median" for rank in trace.workers["rank"].to_list()[:8]]
    large = []
    for edit in (*edits, *WORDS):
        try:
            answered = replay.answer(edit)
        except TraceLensError:
            continue
        large += [
            (edit, answer.saving)
            for answer in answered.answers
            if answered.identity.is_reliable and not answer.doubt and answer.saving >= MIN_SAVING
        ]
    return large


def names_edit(report: Report, edit: str) -> bool:
    """Return whether the report says what the edit is about."""
    verdict = report.verdict
    texts = [verdict.headline, verdict.why, verdict.action]
    texts += [finding.sentence for finding in report.findings]
    text = " ".join(texts).lower()
    if edit.startswith("rank:"):
        rank = int(edit.removeprefix("rank:").split("=")[0])
        is_found = any(rank in finding.ranks for finding in report.findings)
        return is_found or f"rank {rank}" in text or "waits between ranks" in text
    return any(word in text for word in WORDS[edit])


def tell(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Print each edit that a report does not name, and how many are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--samples", type=int, default=100, help="at most so many sample traces")
    given = parse_quick(parser, runs=1, samples=2)
    counts: Counter[str] = Counter()
    for name, trace in draw_runs(given.samples, given.runs, given.seed):
        counts["runs"] += 1
        try:
            large = list_large_edits(trace)
        except TraceLensError as error:
            tell(f"{name}: no replay: {error}")
            continue
        report = tl.analyze(trace) if large else None
        for edit, saving in large:
            counts["edits"] += 1
            if report is None or not names_edit(report, edit):
                counts["missing"] += 1
                said = report.verdict.headline if report else ""
                tell(f"{name}: {edit} saves {saving:.1%}, and the report says: {said}")
    tell(
        f"{counts['runs']} runs: {counts['edits']} edits save a tenth or more; "
        f"{counts['missing']} of them are not in the report."
    )
    return 1 if counts["missing"] else 0


if __name__ == "__main__":
    sys.exit(main())
