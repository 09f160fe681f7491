"""Awan et al. 2018 (arXiv:1810.11112): allreduce by size and algorithm, and what training makes of it.

An allreduce of n bytes takes latency x messages + n x (how often the payload goes over a link) /
bandwidth, both by the algorithm (Thakur, Rabenseifner & Gropp 2005). The abstract gives one that
is 5 and 17 times faster than NCCL's for small and medium messages and 29 % better for large ones, and an
efficiency of 90 % on 64 GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.errors import UnusableInput
from tracelens.facts import Facts
from tracelens.model import fmt
from tracelens.simulator.algorithms import ALGORITHMS, count_messages_and_payloads
from tracelens.studies.figures import Figure, Section, Study

if TYPE_CHECKING:
    from tracelens.model.trace import Trace

PAPER: Final = "Awan et al. 2018, arXiv:1810.11112 (CCGrid'19)"
# ranks: the largest run has as many [Awan et al. 2018; one decision in _duration_us,
# _find_crossover_bytes, _ask_efficiency]
_RANK_COUNT: Final = 64
# bytes: these small to large messages are compared [chosen]
_SIZES_BYTES: Final = (8 << 10, 128 << 10, 4 << 20, 64 << 20)
# us: a message is assumed to have this latency [chosen; one decision in _duration_us,
# _find_crossover_bytes]
_LATENCY_US: Final = 5.0
# GB/s: a link is assumed to carry as much [chosen; one decision in _duration_us,
# _find_crossover_bytes]
_GBYTES_PER_S: Final = 10.0
_STEP_MS: Final = 292.2  # ms: 64 images take as long on one P100 [chosen]
# bytes: ResNet-50's trainable variables have as many [He et al. 2015]
_GRADIENT_BYTES: Final = 102_228_128
_BANDWIDTHS_GB_PER_S: Final = (3.0, 6.0, 10.0)  # GB/s: these are compared [chosen]
# What the abstract says, and times of two libraries, us, that stand in such a ratio.
_RATIOS: Final = {
    "small": ("5 x", 150.0, 30.0),
    "medium": ("17 x", 510.0, 30.0),
    "large": ("29 % better", 12_900.0, 10_000.0),
}
_SOURCES: Final = (
    "64 ranks on links of 5 us and 10 GB/s, unless said otherwise: assumed.",
    "ResNet-50's gradients are 102 MB (its architecture); 64 images take a P100 292 ms: assumed.",
    "'29 % better' is read as 1.29 times the throughput; 0.71 times the latency would be 1.41.",
    "The paper's own text was not read beyond its abstract.",
)


def study() -> Study:
    """Compute."""
    return Study(
        "allreduce", PAPER, (_compare_algorithms(), _ask_efficiency(), _ask_ratios()), _SOURCES
    )


def _duration_us(algorithm: str, nbytes: float) -> float:
    """Return the duration of an allreduce on `_RANK_COUNT` ranks, us."""
    message_count, payload_count = count_messages_and_payloads(algorithm, _RANK_COUNT)
    return message_count * _LATENCY_US + payload_count * nbytes / _GBYTES_PER_S / 1e3


def _compare_algorithms() -> Section:
    """Compute the fastest algorithm for each size, and how much slower the others are."""
    figures = []
    for message_bytes in _SIZES_BYTES:
        fastest = min(ALGORITHMS, key=lambda name: _duration_us(name, message_bytes))
        fastest_us = _duration_us(fastest, message_bytes)
        size = fmt.size(message_bytes)
        figures.append(
            Figure(f"{size}, {_write_name(fastest)} is fastest", fastest_us, "us", "assumed")
        )
        for algorithm in ALGORITHMS:
            if algorithm != fastest:
                ratio = _duration_us(algorithm, message_bytes) / fastest_us
                figures.append(Figure(f"{size}, {_write_name(algorithm)}", ratio, "x", "assumed"))
    pairs = (("recursive_doubling", "rabenseifner"), ("rabenseifner", "ring"))
    for algorithm, other_algorithm in pairs:
        crossover_bytes = _find_crossover_bytes(algorithm, other_algorithm)
        if crossover_bytes is not None:
            name = f"{_write_name(other_algorithm)} beats {_write_name(algorithm)} from"
            figures.append(Figure(name, crossover_bytes / 1024, "KiB", "assumed"))
    return Section(
        "Which algorithm is fastest at which size?",
        tuple(figures),
        "Few messages win while latency counts, few bytes once bandwidth does; a server's link is never "
        "the fastest way.",
    )


def _find_crossover_bytes(algorithm: str, other_algorithm: str) -> float | None:
    """Return the size from which on the other algorithm is faster, bytes; None if it never is."""
    message_count, payload_count = count_messages_and_payloads(algorithm, _RANK_COUNT)
    other_messages, other_payloads = count_messages_and_payloads(other_algorithm, _RANK_COUNT)
    if other_payloads >= payload_count:
        return None
    added_us = (other_messages - message_count) * _LATENCY_US
    return added_us / (payload_count - other_payloads) * _GBYTES_PER_S * 1e3


def _ask_efficiency() -> Section:
    """Compute the efficiency of 64 GPUs by what a ring moves, and what 90 % leave exposed."""
    figures = []
    for gbytes_per_s in _BANDWIDTHS_GB_PER_S:
        ring_ms = 2 * (_RANK_COUNT - 1) / _RANK_COUNT * _GRADIENT_BYTES / gbytes_per_s / 1e6
        efficiency, suffix = _STEP_MS / (_STEP_MS + ring_ms), f"at {gbytes_per_s:g} GB/s"
        name = f"efficiency without overlap {suffix}"
        figures += [
            Figure(f"ring of all gradients {suffix}", ring_ms, "ms", "assumed"),
            Figure(name, efficiency, "%", "assumed", published="90 %"),
        ]
    exposed_ms = _STEP_MS * (1 / 0.9 - 1)
    figures.append(Figure("exposed at 90 % efficiency", exposed_ms, "ms", "derived"))
    return Section(
        "What makes 90 % on 64 GPUs?",
        tuple(figures),
        "6 GB/s without overlap, or 10 GB/s with a third of the exposed time spent on something else.",
    )


def _ask_ratios() -> Section:
    """Compute the published ratios of NCCL's time to that of the paper's allreduce."""
    figures = []
    for name, (published, nccl_us, own_us) in _RATIOS.items():
        label = f"NCCL / the paper's allreduce, {name}"
        ratio = nccl_us / own_us
        figures.append(Figure(label, ratio, "x", "consistency check", published=published))
    return Section(
        "How much faster is an allreduce?",
        tuple(figures),
        "The ratios were put in; real ones come from a sweep (--trace, such as of mpi_sweep.py).",
    )


def ask(trace: Trace) -> Section:
    """Find the fastest algorithm for each size of a recorded run, best of a sweep over sizes.

    Raises:
        UnusableInput: it has no allreduce whose size is known.
    """
    from tracelens.accounting import phases  # noqa: PLC0415 - closed forms need none
    from tracelens.analyses import communication  # noqa: PLC0415

    bandwidths = communication.run(Facts(trace, phases.run(trace))).bandwidths.filter(
        pl.col("op") == "allreduce"
    )
    if bandwidths.is_empty():
        raise UnusableInput(
            "This run has no allreduce whose bytes are known: expected one, such as of mpi_sweep.py."
        )
    bandwidths = bandwidths.with_columns(pl.col("algorithm").fill_null("the library's own"))
    figures = []
    sizes = bandwidths.sort("from_bytes").group_by("from_bytes", "ranks", maintain_order=True)
    for (nbytes, ranks), algorithms in sizes:
        fastest = algorithms.sort("wire_ns", "algorithm").row(0, named=True)
        size_text = f"{fmt.size(nbytes)}, {ranks} ranks"
        name = f"{size_text}, {_write_name(fastest['algorithm'])} is fastest"
        figures.append(Figure(name, fastest["wire_ns"] / 1e3, "us", "measured"))
        if algorithms.height > 1:
            ratio = algorithms["wire_ns"].max() / fastest["wire_ns"]
            figures.append(Figure(f"{size_text}, slowest", ratio, "x", "measured"))
    return Section(
        "What did the run given take?",
        tuple(figures),
        "Medians of the time after the last rank had come, by size up to four times the one named.",
    )


def _write_name(algorithm: str) -> str:
    return algorithm.replace("_", " ")
