"""Mathuriya et al. 2017 (arXiv:1712.09388): TensorFlow with parameter servers over gRPC on Cori.

The abstract gives two efficiencies of ResNet-50, over 80 % (128 workers, 32 servers) and 23 % (512 and
64), over 80 % of HEP-CNN with one server and up to 256 workers, and names load imbalance among servers,
an algorithm that wastes bandwidth, and gRPC on the Aries network as causes. Each model of a step is
fitted to 23 %; what it then says of 128 workers is compared with the other number. With T the compute of
a step, W workers, b the bytes of the fullest server and B its bandwidth: *additive* T + 2 W b / B,
*overlap* max(T, 2 W b / B), *incast* T + g W^2 b (no overlap; a link does less the more workers send at
once), and *event*: the simulator, in which transfers overlap compute as the order of variables lets
them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tracelens.load import prepare
from tracelens.model import fmt
from tracelens.placement import STRATEGIES, loads
from tracelens.simulator import scenario_file, synthetic
from tracelens.studies.figures import Figure, Section, Study, Tag
from tracelens.studies.traces import Served, measure_served

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.model.trace import Trace
    from tracelens.simulator.scenario import Scenario

PAPER: Final = "Mathuriya et al. 2017, arXiv:1712.09388"
_PUBLISHED: Final = {(128, 32): "> 80 %", (512, 64): "23 %"}
# efficiency: models are fitted to that of 512 workers with 64 servers [Mathuriya et al. 2017; one
# decision in _Model._fitted, _ask_explained, _make_congested]
_FITTED_EFFICIENCY: Final = 0.23
# share of the fullest server's work: transfers are overlapped if as much is hidden [chosen]
MIN_SHARE_HIDDEN_IF_OVERLAPPED: Final = 0.5
_GIVEN: Final = "the run given"
_HEP_WORKERS: Final = 256  # workers: HEP-CNN's largest run has as many [Mathuriya et al. 2017]


@dataclass(frozen=True)
class _Model:
    """How a step follows from compute and cost, both s; `cost` says how that grows, per byte."""

    cost: Callable[[int], float]
    step: Callable[[float, float], float]

    def efficiency(self, size: tuple[int, float], fitted_size: tuple[int, float]) -> float:
        """Return the efficiency at a size if the fitted one reaches 23 %.

        A size is the number of workers, and the bytes of the fullest server.
        """
        (workers, nbytes), (fitted_workers, fitted_bytes) = size, fitted_size
        cost_ratio = self.cost(workers) * nbytes / (self.cost(fitted_workers) * fitted_bytes)
        return 1 / self.step(1.0, self._fitted() * cost_ratio)

    def _fitted(self) -> float:
        """Return the cost, as a multiple of compute, that makes 23 % of the fitted size."""
        step_ratio = 1 / _FITTED_EFFICIENCY
        return step_ratio if self.step(1.0, step_ratio) == step_ratio else step_ratio - 1


MODELS: Final = {
    "additive": _Model(lambda workers: workers, lambda tc, cost: tc + cost),
    "overlap": _Model(lambda workers: workers, max),
    "incast": _Model(lambda workers: workers**2, lambda tc, cost: tc + cost),
}


def study() -> Study:
    """Compute and simulate."""
    resnet = _make_resnet()
    sections = (
        _ask_placement(resnet),
        _ask_efficiencies(resnet),
        _ask_explained(resnet),
        _ask_hep_cnn(),
        _ask_overlap(resnet),
    )
    return Study("cori", PAPER, sections, _SOURCES)


def ask(trace: Trace) -> Section:
    """Measure whether a run with parameter servers overlaps its transfers.

    Raises:
        UnusableInput: it has no such servers.
    """
    measured = measure_served(trace)
    return Section(
        "Overlap or incast in the run given?",
        _make_figures(_GIVEN, measured, "measured"),
        f"{fmt.capital(_name_cause(measured.hidden_share))}.",
    )


_SOURCES: Final = (
    "ResNet-50's 161 trainable variables, in order of creation, follow from its architecture (102 MB).",
    "A step computes for 2.0 s (ResNet-50) or 1.06 s (HEP-CNN) on one worker: assumed.",
    "Links of the event model carry 1.15 GB/s each way, so that 512 workers with 64 servers reach 23 %.",
    "The paper's own text was not read beyond its abstract.",
)


def _make_resnet() -> Scenario:
    """Return a single step without noise: the other models have none."""
    preset = scenario_file.scenario(scenario_file.preset("resnet50"))
    return replace(preset, steps=1, noise=0.0, spread=0.0)


def _find_fullest_bytes(scenario: Scenario, shards: int, strategy: str = "round_robin") -> float:
    return float(max(loads(STRATEGIES[strategy](scenario.variables, shards), shards)))


def _ask_placement(resnet: Scenario) -> Section:
    """Derive how uneven servers are: bytes of the fullest one over the mean."""
    total_bytes = sum(resnet.variables)
    figures = []
    for shards in (32, 64):
        fullest_bytes = _find_fullest_bytes(resnet, shards)
        figures += [
            Figure(
                f"most / mean bytes, {shards} servers",
                fullest_bytes * shards / total_bytes,
                "x",
                "derived",
            ),
            Figure(f"effective servers of {shards}", total_bytes / fullest_bytes, "", "derived"),
        ]
    imbalance = _find_fullest_bytes(resnet, 64, "greedy") * 64 / total_bytes
    figures.append(Figure("most / mean bytes, 64 servers, greedy", imbalance, "x", "derived"))
    largest_bytes = max(resnet.variables)
    return Section(
        "How uneven are the servers?",
        tuple(figures),
        f"The largest tensor, {largest_bytes / 1e6:.2f} MB, is on one server, whatever the "
        "strategy: twice the servers hardly help.",
    )


def _ask_efficiencies(resnet: Scenario) -> Section:
    """Compute the efficiency at both published sizes, by each model of a step."""
    fullest_bytes = {
        (workers, shards): _find_fullest_bytes(resnet, shards) for workers, shards in _PUBLISHED
    }
    fitted_workers = 512
    fitted_size = (fitted_workers, fullest_bytes[fitted_workers, 64])
    figures = []
    for name, model in MODELS.items():
        for (workers, shards), nbytes in fullest_bytes.items():
            figures.append(
                Figure(
                    f"efficiency {workers}/{shards}, {name}",
                    model.efficiency((workers, nbytes), fitted_size),
                    "%",
                    "consistency check" if workers == fitted_workers else "assumed",
                    _PUBLISHED[workers, shards],
                )
            )
    for (workers, shards), published in _PUBLISHED.items():
        figures.append(
            Figure(
                f"efficiency {workers}/{shards}, event",
                _simulate_efficiency(resnet, workers, shards),
                "%",
                "consistency check" if workers == fitted_workers else "simulated",
                published,
            )
        )
    return Section(
        "Which model of a step gives both efficiencies?",
        tuple(figures),
        "Without overlap and with a fair link both cannot be: 23 % forces far less than 80 %. Overlap "
        "gives both, and so does no overlap with a link that loses to incast.",
    )


def _simulate_efficiency(
    resnet: Scenario, workers: int, shards: int, placement: str = "round_robin"
) -> float:
    """Simulate a run, and return its compute time over its length."""
    run = replace(resnet, ranks=workers, shards=shards, placement=placement)
    compute_ms = run.data_ms + run.forward_ms + run.backprop_ms
    return compute_ms * 1e6 / synthetic.duration_ns(run)


def _ask_explained(resnet: Scenario) -> Section:
    """Compute the efficiency with even servers and the share of the loss by uneven ones, by model."""
    total_bytes, fullest_bytes = sum(resnet.variables), _find_fullest_bytes(resnet, 64)
    fitted_size = (512, fullest_bytes)
    loss = 1 - _FITTED_EFFICIENCY
    efficiencies = {
        name: model.efficiency((512, total_bytes / 64), fitted_size)
        for name, model in MODELS.items()
    }
    efficiencies["event"] = _simulate_efficiency(resnet, 512, 64, "chunked")
    figures = []
    for name, efficiency in efficiencies.items():
        tag: Tag = "simulated" if name == "event" else "assumed"
        placement = "32 KiB chunks" if name == "event" else "even servers"
        figures += [
            Figure(f"efficiency 512/64 with {placement}, {name}", efficiency, "%", tag),
            Figure(
                f"of the loss by placement, {name}",
                (efficiency - _FITTED_EFFICIENCY) / loss,
                "%",
                tag,
            ),
        ]
    return Section(
        "How much of the loss is placement?",
        tuple(figures),
        "Half of it if transfers are not overlapped, nearly all if they are.",
    )


def _ask_hep_cnn() -> Section:
    """Compute HEP-CNN's efficiency with one server, with and without overlap."""
    scenario = scenario_file.scenario(scenario_file.preset("hepcnn"))
    compute_s = (scenario.data_ms + scenario.forward_ms + scenario.backprop_ms) / 1e3
    transfer_s = 2 * _HEP_WORKERS * sum(scenario.variables) / (scenario.link_gbytes_per_s * 1e9)
    figures = (
        Figure(
            "HEP-CNN efficiency 256/1, overlap",
            compute_s / max(compute_s, transfer_s),
            "%",
            "assumed",
            "> 80 %",
        ),
        Figure(
            "HEP-CNN efficiency 256/1, additive",
            compute_s / (compute_s + transfer_s),
            "%",
            "assumed",
            "> 80 %",
        ),
    )
    return Section(
        "Does HEP-CNN agree?",
        figures,
        "Its one server is busy for longer than a step computes: over 80 % needs overlap.",
    )


def _ask_overlap(resnet: Scenario) -> Section:
    """Ask simulated runs whether their transfers are overlapped."""
    smaller = replace(resnet, ranks=128, shards=32)
    runs = {
        "a run with overlap": prepare(synthetic.generate(smaller)),
        "a run with incast": prepare(synthetic.generate(_make_congested(smaller))),
    }
    measured_by_name = {name: measure_served(trace) for name, trace in runs.items()}
    figures = [
        figure
        for name, measured in measured_by_name.items()
        for figure in _make_figures(name, measured, "simulated")
    ]
    verdicts = [
        f"{name}: {_name_cause(figure.hidden_share)}" for name, figure in measured_by_name.items()
    ]
    return Section(
        "Overlap or incast? What a trace says",
        tuple(figures),
        f"{fmt.capital('; '.join(verdicts))}. A server that works while workers compute is hidden; "
        "one that works only while they wait is not.",
    )


def _make_figures(name: str, measured: Served, tag: Tag) -> tuple[Figure, ...]:
    return (
        Figure(f"fullest server at work, {name}", measured.busy_share, "%", tag),
        Figure(f"of that beside compute, {name}", measured.hidden_share, "%", tag),
    )


def _name_cause(hidden_share: float) -> str:
    return (
        "overlap"
        if hidden_share >= MIN_SHARE_HIDDEN_IF_OVERLAPPED
        else "no overlap, so incast if few bytes take long"
    )


def _make_congested(resnet: Scenario) -> Scenario:
    """Return workers that first compute and then send, on links whose work falls as 1 / workers.

    Replies do not collide in the simulator, so that pushes alone take what both would.
    """
    exposed_s = (1 / _FITTED_EFFICIENCY - 1) * (resnet.forward_ms + resnet.backprop_ms) / 1e3
    bandwidth = 512**2 * _find_fullest_bytes(resnet, 64) / exposed_s
    return replace(resnet, beside_compute=False, incast=1.0, link_gbytes_per_s=bandwidth / 1e9)
