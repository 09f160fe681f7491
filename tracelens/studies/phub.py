"""Luo et al. 2018 (PHub, arXiv:1801.09805 and 1805.07891): where servers run, and their pipeline.

What a step has to move over the busiest link, M bytes of gradients and N workers: N M with one server of
its own, (N - 1) M if a worker's machine holds it, M if N servers of their own share the variables, and
2 (N - 1) M / N if each worker's machine holds one, as of a ring. A pipeline of chunks moves both ways at
once and during compute; without it a step is compute, then pushes, then pulls, at the share of the link
that the software reaches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tracelens.errors import InvalidArgument, UnusableInput
from tracelens.placement import CHUNK_BYTES
from tracelens.simulator import scenario_file, synthetic
from tracelens.simulator.scenario import MILLISECOND
from tracelens.studies.figures import Figure, Section, Study
from tracelens.verdicts.whatif import whatif

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.model.trace import Trace

PAPER: Final = "Luo et al. 2018, arXiv:1801.09805 and arXiv:1805.07891"
# How many times the gradients' bytes go over the busiest link each way, by the number of workers.
ARRANGEMENTS: Final[dict[str, Callable[[int], float]]] = {
    "one server of its own": float,
    "one server beside a worker": lambda workers: float(workers - 1),
    "8 servers of their own": lambda _workers: 1.0,
    "a server beside each worker": lambda workers: 2 * (workers - 1) / workers,
}
_SPEEDUPS: Final = {"2018-01": (3.8, "up to 3.8 x"), "SoCC": (2.7, "up to 2.7 x")}
_SOURCES: Final = (
    "AlexNet's gradients are 194 MB and its step computes for 16 ms: assumed, from memory of the paper.",
    "8 workers on 10 Gb/s, as the paper's cloud-like network: assumed.",
    "The paper's own text was not read beyond its abstract.",
)


_CHUNKS: Final = f"placement=chunked:{CHUNK_BYTES // 1024}KiB"


def study() -> Study:
    """Compute and simulate."""
    alexnet = scenario_file.make_scenario(scenario_file.load_preset("alexnet"))
    gradient_bytes, workers = float(sum(alexnet.variables)), alexnet.ranks
    compute_ms = alexnet.data_ms + alexnet.forward_ms + alexnet.backprop_ms
    bytes_per_ms = alexnet.link_gbytes_per_s * 1e6  # bytes / ms
    one_way_ms = gradient_bytes / bytes_per_ms
    best_ms = max(compute_ms, one_way_ms)  # of a step
    quiet_system = replace(alexnet, steps=3, noise=0.0, spread=0.0)
    sections = (
        _ask_arrangements(gradient_bytes, workers, compute_ms, bytes_per_ms),
        Section(
            "How long is a step at best?",
            (
                Figure("step, pipelined, full duplex", best_ms, "ms", "assumed"),
                Figure("step, push then pull", compute_ms + 2 * one_way_ms, "ms", "assumed"),
                Figure(
                    "step, simulated: chunks, all servers done before the next step",
                    synthetic.duration_ns(quiet_system) / quiet_system.steps / 1e6,
                    "ms",
                    "simulated",
                ),
            ),
            "The link bounds the step: overlap alone halves it, and a barrier takes that back.",
        ),
        _ask_speedups(compute_ms, one_way_ms),
    )
    return Study("phub", PAPER, sections, _SOURCES)


def _ask_arrangements(
    gradient_bytes: float, workers: int, compute_ms: float, bytes_per_ms: float
) -> Section:
    """Compute the load of the busiest link in a step for each arrangement of servers."""
    figures = []
    for name, count_payloads in ARRANGEMENTS.items():
        link_bytes = count_payloads(workers) * gradient_bytes
        gbits_per_s = link_bytes * 8 / compute_ms / 1e6
        figures += [
            Figure(f"busiest link each way, {name}", link_bytes / 1e6, "MB", "assumed"),
            Figure(f"time on it, {name}", link_bytes / bytes_per_ms, "ms", "assumed"),
            Figure(f"bandwidth that hides it, {name}", gbits_per_s, "Gb/s", "assumed"),
        ]
    return Section(
        "What does each arrangement move, and what bandwidth hides it?",
        tuple(figures),
        "Servers of their own that share the variables load links least; one server for all, most.",
    )


def _ask_speedups(compute_ms: float, one_way_ms: float) -> Section:
    """Derive other software's share of the link from the published speedup over the best step."""
    best_ms = max(compute_ms, one_way_ms)
    figures = []
    for name, (speedup, published) in _SPEEDUPS.items():
        link_share = 2 * one_way_ms / (speedup * best_ms - compute_ms)
        same_speedup = (compute_ms + 2 * one_way_ms / link_share) / best_ms
        figures += [
            Figure(f"share of the link that software reaches, {name}", link_share, "%", "assumed"),
            Figure(f"speedup, {name}", same_speedup, "x", "consistency check", published=published),
        ]
    overlap_speedup = (compute_ms + 2 * one_way_ms) / best_ms
    figures.append(Figure("speedup by overlap alone", overlap_speedup, "x", "assumed"))
    return Section(
        "What does the speedup come from?",
        tuple(figures),
        "Overlap gives a factor of two; the rest would be software that leaves half the link idle.",
    )


def ask(trace: Trace) -> Section:
    """Replay a run with servers with its bytes in chunks on all of them.

    Raises:
        UnusableInput: it has no servers, or too few sizes to tell the time of their services by bytes.
    """
    try:
        answers = whatif(trace, _CHUNKS)
    except InvalidArgument as error:
        raise UnusableInput(
            f"This run cannot be asked what chunks would change: expected one with parameter servers "
            f"and variables of several sizes. {error}"
        ) from None
    (answer,) = answers.answers
    low_ms, high_ms = (bound_ns / MILLISECOND for bound_ns in answer.after_interval_ns)
    figures = (
        Figure("step of the run given", answer.before_ns / MILLISECOND, "ms", "measured"),
        Figure("step with chunks, replayed", answer.after_ns / MILLISECOND, "ms", "measured"),
        Figure("step with chunks, at least", low_ms, "ms", "measured"),
        Figure("step with chunks, at most", high_ms, "ms", "measured"),
        Figure("speedup by chunks", answer.before_ns / answer.after_ns, "x", "measured"),
    )
    return Section(
        "What would chunks change in the run given?",
        figures,
        " ".join((*answer.remarks, answers.trust)),
    )
