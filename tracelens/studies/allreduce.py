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
from tracelens.simulator.algorithms import ALGORITHMS, transfer
from tracelens.studies.figures import Figure, Section, Study

if TYPE_CHECKING:
    from tracelens.model.trace import Trace

__all__ = ["ask", "study"]

PAPER: Final = "Awan et al. 2018, arXiv:1810.11112 (CCGrid'19)"
# ranks: the largest run has as many [Awan et al. 2018; one decision in _took_us, _crossover,
# _training]
_RANKS: Final = 64
# bytes: these small to large messages are compared [chosen]
_SIZES: Final = (8 << 10, 128 << 10, 4 << 20, 64 << 20)
# us: a message is assumed to have this latency [chosen; one decision in _took_us, _crossover]
_LATENCY_US: Final = 5.0
# GB/s: a link is assumed to carry as much [chosen; one decision in _took_us, _crossover]
_GBYTES_PER_S: Final = 10.0
_STEP_MS: Final = 292.2  # ms: 64 images take as long on one P100 [chosen]
# bytes: ResNet-50's trainable variables have as many [He et al. 2015]
_GRADIENTS: Final = 102_228_128
_BANDWIDTHS: Final = (3.0, 6.0, 10.0)  # GB/s: these are compared [chosen]
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
    return Study("allreduce", PAPER, (_winners(), _training(), _ratios()), _SOURCES)


def _took_us(algorithm: str, nbytes: float) -> float:
    messages, share = transfer(algorithm, _RANKS)
    return messages * _LATENCY_US + share * nbytes / _GBYTES_PER_S / 1e3


def _winners() -> Section:
    figures = []
    for nbytes in _SIZES:
        best = min(ALGORITHMS, key=lambda name: _took_us(name, nbytes))
        took = _took_us(best, nbytes)
        figures.append(
            Figure(f"{fmt.size(nbytes)}, {_word(best)} is fastest", took, "us", "assumed")
        )
        figures += [
            Figure(
                f"{fmt.size(nbytes)}, {_word(name)}", _took_us(name, nbytes) / took, "x", "assumed"
            )
            for name in ALGORITHMS
            if name != best
        ]
    for one, other in (("recursive_doubling", "rabenseifner"), ("rabenseifner", "ring")):
        at = _crossover(one, other)
        if at is not None:
            name = f"{_word(other)} beats {_word(one)} from"
            figures.append(Figure(name, at / 1024, "KiB", "assumed"))
    return Section(
        "Which algorithm is fastest at which size?",
        tuple(figures),
        "Few messages win while latency counts, few bytes once bandwidth does; a server's link is never "
        "the fastest way.",
    )


def _crossover(one: str, other: str) -> float | None:
    """Return from what size, bytes, the other algorithm is faster; None where it never is."""
    (few, twice), (many, once) = transfer(one, _RANKS), transfer(other, _RANKS)
    if once >= twice:
        return None
    return (many - few) * _LATENCY_US / (twice - once) * _GBYTES_PER_S * 1e3


def _training() -> Section:
    """Return the efficiency of 64 GPUs by what a ring moves, without and with overlap."""
    figures = []
    for pace in _BANDWIDTHS:
        ring_ms = 2 * (_RANKS - 1) / _RANKS * _GRADIENTS / pace / 1e6
        alone = _STEP_MS / (_STEP_MS + ring_ms)
        figures += [
            Figure(f"ring of all gradients at {pace:g} GB/s", ring_ms, "ms", "assumed"),
            Figure(f"efficiency without overlap at {pace:g} GB/s", alone, "%", "assumed", "90 %"),
        ]
    exposed = _STEP_MS * (1 / 0.9 - 1)
    figures.append(Figure("exposed at 90 % efficiency", exposed, "ms", "derived"))
    return Section(
        "What makes 90 % on 64 GPUs?",
        tuple(figures),
        "6 GB/s without overlap, or 10 GB/s with a third of the exposed time spent on something else.",
    )


def _ratios() -> Section:
    figures = tuple(
        Figure(f"NCCL / the paper's allreduce, {name}", slow / fast, "x", "consistency check", says)
        for name, (says, slow, fast) in _RATIOS.items()
    )
    return Section(
        "How much faster is an allreduce?",
        figures,
        "The ratios were put in; real ones come from a sweep (--trace, such as of mpi_sweep.py).",
    )


def ask(trace: Trace) -> Section:
    """Return of each size the algorithm that took least in a recorded run, best a sweep over sizes.

    Raises:
        UnusableInput: it has no allreduce whose size is known.
    """
    from tracelens.accounting import phases  # noqa: PLC0415 - closed forms need none
    from tracelens.analyses import communication  # noqa: PLC0415

    found = communication.run(Facts(trace, phases.run(trace))).bandwidths.filter(
        pl.col("op") == "allreduce"
    )
    if found.is_empty():
        raise UnusableInput(
            "This run has no allreduce whose bytes are known: expected one, such as of mpi_sweep.py."
        )
    found = found.with_columns(pl.col("algorithm").fill_null("the library's own"))
    figures = []
    for (nbytes, ranks), group in found.sort("from_bytes").group_by(
        "from_bytes", "ranks", maintain_order=True
    ):
        best = group.sort("wire_ns", "algorithm").row(0, named=True)
        name = f"{fmt.size(nbytes)}, {ranks} ranks, {_word(best['algorithm'])} is fastest"
        figures.append(Figure(name, best["wire_ns"] / 1e3, "us", "measured"))
        if group.height > 1:
            slowest = group["wire_ns"].max()
            ratio = slowest / best["wire_ns"]
            figures.append(
                Figure(f"{fmt.size(nbytes)}, {ranks} ranks, slowest", ratio, "x", "measured")
            )
    return Section(
        "What did the run given take?",
        tuple(figures),
        "Medians of the time after the last rank had come, by size up to four times the one named.",
    )


def _word(algorithm: str) -> str:
    return algorithm.replace("_", " ")
