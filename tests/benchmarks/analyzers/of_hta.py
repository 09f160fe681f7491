"""What a user of Holistic Trace Analysis does first: load a folder of traces, then three questions.

Runs in the environment of its own, with nothing of ours.

Run: python tests/benchmarks/analyzers/of_hta.py FOLDER
"""

from __future__ import annotations

import sys

from hta.trace_analysis import TraceAnalysis


def main() -> None:
    """Load, and ask for breakdown, overlap and idle time of all ranks; print the tables."""
    analysis = TraceAnalysis(trace_dir=sys.argv[1])
    ranks = sorted(analysis.t.traces)
    answers = (
        analysis.get_temporal_breakdown(visualize=False),
        analysis.get_comm_comp_overlap(visualize=False),
        analysis.get_idle_time_breakdown(ranks=ranks, visualize=False)[0],
    )
    for answer in answers:
        sys.stdout.write(f"{answer.to_csv(index=False)}\n")


if __name__ == "__main__":
    main()
