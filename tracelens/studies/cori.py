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
from tracelens.placement import STRATEGIES, sum_shard_bytes
from tracelens.simulator import scenario_file, synthetic
from tracelens.studies.figures import Figure, Section, Study, Tag
from tracelens.studies.traces import ServerLoad, measure_server_load

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.model.trace import Trace
    from tracelens.simulator.scenario import Scenario

PAPER: Final = "Mathuriya et al. 2017, arXiv:1712.09388"
_PUBLISHED: Final = {(128, 32): "> 80 %", (512, 64): "23 %"}
# workers and servers: models are fitted to the efficiency of so many [Mathuriya et al. 2017; one
# decision in _ask_efficiencies, _ask_explained, _make_congested]
_FITTED_SIZE: Final = (512, 64)
# efficiency: models are fitted to that of 512 workers with 64 servers [Mathuriya et al. 2017; one
# decision in _Model._fit_communication, _ask_explained, _make_congested]
_FITTED_EFFICIENCY: Final = 0.23
# share of the fullest server's work: transfers are overlapped if as much is hidden [chosen]
MIN_SHARE_HIDDEN_IF_OVERLAPPED: Final = 0.5
_GIVEN: Final = "the run given"
_HEP_WORKERS: Final = 256  # workers: HEP-CNN's largest run has as many [Mathuriya et al. 2017]


@dataclass(frozen=True)
class _Model:
    """How the time of a step follows from those of compute and of communication.

    `weigh_workers` says how communication grows with workers, for each byte of the fullest server.
    """

    weigh_workers: Callable[[int], float]
    combine_times: Callable[[float, float], float]

    def find_efficiency(self, size: tuple[int, float], fitted_size: tuple[int, float]) -> float:
        """Return the efficiency at (workers, bytes of the fullest server), if fitted to 23 %."""
        sizes = (size, fitted_size)
        cost, fitted_cost = (self.weigh_workers(workers) * nbytes for workers, nbytes in sizes)
        return 1 / self.combine_times(1.0, self._fit_communication() * (cost / fitted_cost))

    def _fit_communication(self) -> float:
        """Return the communication, as a multiple of compute, that makes 23 % of the fitted size."""
        step_ratio = 1 / _FITTED_EFFICIENCY  # of a step to its compute
        is_hidden = self.combine_times(1.0, step_ratio) == step_ratio
        return step_ratio if is_hidden else step_ratio - 1


MODELS: Final = {
    "additive": _Model(lambda workers: workers, lambda compute, transfer: compute + transfer),
    "overlap": _Model(lambda workers: workers, max),
    "incast": _Model(lambda workers: workers**2, lambda compute, transfer: compute + transfer),
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
    server_load = measure_server_load(trace)
    return Section(
        "Overlap or incast in the run given?",
        _make_figures(_GIVEN, server_load, tag="measured"),
        f"{fmt.capital(_name_cause(server_load.hidden_share))}.",
    )


_SOURCES: Final = (
    "ResNet-50's 161 trainable variables, in order of creation, follow from its architecture (102 MB).",
    "A step computes for 2.0 s (ResNet-50) or 1.06 s (HEP-CNN) on one worker: assumed.",
    "Links of the event model carry 1.15 GB/s each way, so that 512 workers with 64 servers reach 23 %.",
    "The paper's own text was not read beyond its abstract.",
)


def _make_resnet() -> Scenario:
    """Return a single step without noise: the other models have none."""
    preset = scenario_file.make_scenario(scenario_file.load_preset("resnet50"))
    return replace(preset, steps=1, noise=0.0, spread=0.0)


def _find_bytes_of_fullest_server(
    scenario: Scenario, shards: int, strategy: str = "round_robin"
) -> float:
    """Return the bytes of variables on the fullest of some servers, if a strategy places them."""
    return float(max(sum_shard_bytes(STRATEGIES[strategy](scenario.variables, shards), shards)))


def _ask_placement(resnet: Scenario) -> Section:
    """Derive how uneven servers are: bytes of the fullest one over the mean, for 32 and 64 of them."""
    total_bytes = sum(resnet.variables)
    figures = []
    for shards in (32, 64):
        fullest_bytes = _find_bytes_of_fullest_server(resnet, shards)
        ratio = fullest_bytes * shards / total_bytes
        figures += [
            Figure(f"most / mean bytes, {shards} servers", ratio, "x", "derived"),
            Figure(
                f"effective servers of {shards}",
                total_bytes / fullest_bytes,
                unit="",
                tag="derived",
            ),
        ]
    greedy_ratio = (
        _find_bytes_of_fullest_server(resnet, shards=64, strategy="greedy") * 64 / total_bytes
    )
    figures.append(Figure("most / mean bytes, 64 servers, greedy", greedy_ratio, "x", "derived"))
    largest_bytes = max(resnet.variables)
    return Section(
        "How uneven are the servers?",
        tuple(figures),
        f"The largest tensor, {largest_bytes / 1e6:.2f} MB, is on one server, whatever the "
        "strategy: twice the servers hardly help.",
    )


def _ask_efficiencies(resnet: Scenario) -> Section:
    """Compute the efficiency, a fraction, at both published sizes, by each model and by simulation.

    The models are fitted to the efficiency that is published for `_FITTED_SIZE`.
    """
    fullest_bytes_by_size = {
        (workers, shards): _find_bytes_of_fullest_server(resnet, shards)
        for workers, shards in _PUBLISHED
    }
    fitted_workers, _ = _FITTED_SIZE
    fitted_load = (fitted_workers, fullest_bytes_by_size[_FITTED_SIZE])
    figures = []
    for name, model in MODELS.items():
        for (workers, shards), fullest_bytes in fullest_bytes_by_size.items():
            figures.append(
                Figure(
                    f"efficiency {workers}/{shards}, {name}",
                    model.find_efficiency((workers, fullest_bytes), fitted_load),
                    "%",
                    "consistency check" if workers == fitted_workers else "assumed",
                    published=_PUBLISHED[workers, shards],
                )
            )
    for (workers, shards), published in _PUBLISHED.items():
        figures.append(
            Figure(
                f"efficiency {workers}/{shards}, event",
                _simulate_efficiency(resnet, workers, shards),
                "%",
                "consistency check" if workers == fitted_workers else "simulated",
                published=published,
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
    """Simulate a run of one step, and return its compute time over its length."""
    run = replace(resnet, ranks=workers, shards=shards, placement=placement)
    compute_ms = run.data_ms + run.forward_ms + run.backprop_ms
    return compute_ms * 1e6 / synthetic.duration_ns(run)


def _ask_explained(resnet: Scenario) -> Section:
    """Compute the efficiency with even servers and the share of the loss by uneven ones, by model."""
    workers, shards = _FITTED_SIZE
    fitted_load = (workers, _find_bytes_of_fullest_server(resnet, shards))
    even_load = (workers, sum(resnet.variables) / shards)
    loss_share = 1 - _FITTED_EFFICIENCY
    efficiency_by_model = {
        name: model.find_efficiency(even_load, fitted_load) for name, model in MODELS.items()
    }
    event_efficiency = _simulate_efficiency(resnet, workers, shards, placement="chunked")
    efficiency_by_model["event"] = event_efficiency
    figures = []
    for name, efficiency in efficiency_by_model.items():
        tag: Tag = "simulated" if name == "event" else "assumed"
        placement = "32 KiB chunks" if name == "event" else "even servers"
        placement_share = (efficiency - _FITTED_EFFICIENCY) / loss_share
        figures += [
            Figure(f"efficiency 512/64 with {placement}, {name}", efficiency, "%", tag),
            Figure(f"of the loss by placement, {name}", placement_share, "%", tag),
        ]
    return Section(
        "How much of the loss is placement?",
        tuple(figures),
        "Half of it if transfers are not overlapped, nearly all if they are.",
    )


def _ask_hep_cnn() -> Section:
    """Compute HEP-CNN's efficiency with one server, with and without overlap."""
    scenario = scenario_file.make_scenario(scenario_file.load_preset("hepcnn"))
    compute_s = (scenario.data_ms + scenario.forward_ms + scenario.backprop_ms) / 1e3
    transfer_s = 2 * _HEP_WORKERS * sum(scenario.variables) / (scenario.link_gbytes_per_s * 1e9)
    step_by_model = {"overlap": max(compute_s, transfer_s), "additive": compute_s + transfer_s}
    figures = []
    for model, step_s in step_by_model.items():
        name = f"HEP-CNN efficiency 256/1, {model}"
        figures.append(Figure(name, compute_s / step_s, "%", "assumed", published="> 80 %"))
    return Section(
        "Does HEP-CNN agree?",
        tuple(figures),
        "Its one server is busy for longer than a step computes: over 80 % needs overlap.",
    )


def _ask_overlap(resnet: Scenario) -> Section:
    """Ask simulated runs whether their transfers are overlapped."""
    smaller = replace(resnet, ranks=128, shards=32)
    runs = {
        "a run with overlap": prepare(synthetic.generate(smaller)),
        "a run with incast": prepare(synthetic.generate(_make_congested(smaller))),
    }
    load_by_run = {name: measure_server_load(trace) for name, trace in runs.items()}
    figures = [
        figure
        for name, server_load in load_by_run.items()
        for figure in _make_figures(name, server_load, tag="simulated")
    ]
    verdicts = [
        f"{name}: {_name_cause(server_load.hidden_share)}"
        for name, server_load in load_by_run.items()
    ]
    return Section(
        "Overlap or incast? What a trace says",
        tuple(figures),
        f"{fmt.capital('; '.join(verdicts))}. A server that works while workers compute is hidden; "
        "one that works only while they wait is not.",
    )


def _make_figures(run: str, server_load: ServerLoad, tag: Tag) -> tuple[Figure, ...]:
    return (
        Figure(f"fullest server at work, {run}", server_load.busy_share, "%", tag),
        Figure(f"of that beside compute, {run}", server_load.hidden_share, "%", tag),
    )


def _name_cause(hidden_share: float) -> str:
    return (
        "overlap"
        if hidden_share >= MIN_SHARE_HIDDEN_IF_OVERLAPPED
        else "no overlap, so incast if few bytes take long"
    )


def _make_congested(resnet: Scenario) -> Scenario:
    """Return workers that first compute and then send, on links that lose throughput to incast.

    The link is so fast that the pushes to the fullest server take what a step takes beside compute at
    the fitted efficiency. All workers push at once, and of `n` pushes at once the link carries only
    1 / n of its bytes per second (``incast=1.0``). Replies do not collide in the simulator.
    """
    workers, shards = _FITTED_SIZE
    exposed_s = (1 / _FITTED_EFFICIENCY - 1) * (resnet.forward_ms + resnet.backprop_ms) / 1e3
    pushed_bytes = workers * _find_bytes_of_fullest_server(resnet, shards)
    bytes_per_s = workers * pushed_bytes / exposed_s
    return replace(resnet, beside_compute=False, incast=1.0, link_gbytes_per_s=bytes_per_s / 1e9)
