"""A scenario from TOML: what it may hold, and a sentence for each mistake."""

from pathlib import Path

import pytest

from tracelens.errors import InvalidArgument, TraceNotFound, UnusableInput
from tracelens.simulator.algorithms import count_messages_and_payloads
from tracelens.simulator.scenario import Fault, Scenario
from tracelens.simulator.scenario_file import load

SERVERS = "[servers]\nvariables = [8, 4]\n"


def read(folder: Path, text: str, *changes: str) -> Scenario:
    file = folder / "scenario.toml"
    file.write_text(text)
    return load(file, changes)


def test_an_empty_file_is_the_usual_scenario(tmp_path: Path) -> None:
    """Of its network, whose time is now that of a ring of 4."""
    scenario = read(tmp_path, "")
    assert (scenario.ranks, scenario.steps, scenario.buckets) == (4, 50, 2)
    assert scenario.transfer_ms == pytest.approx(1.5 * (4 << 20) / 2e6)
    assert scenario.message_ms == pytest.approx(6 * 0.02)


def test_all_tables_are_read(tmp_path: Path) -> None:
    """Names of files become those of scenarios; links are shared and transfers overlap by default."""
    text = """
        [run]
        workers = 8
        seed = 3
        [network]
        gbytes_per_s = 10
        message_us = 5
        [servers]
        shards = 2
        variables = [8, 4]
        work = [1, 2.5]
        placement = "greedy"
        [[fault]]
        phase = "wire"
        ranks = [1]
        steps = [3, 9]
        factor = 2
    """
    scenario = read(tmp_path, text)
    assert (scenario.ranks, scenario.seed, scenario.shards) == (8, 3, 2)
    assert (scenario.link_gbytes_per_s, scenario.message_ms) == (10, 0.005)
    assert (scenario.variables, scenario.work) == ((8, 4), (1, 2.5))
    assert scenario.shared_links
    assert scenario.beside_compute
    assert scenario.faults == (Fault("wire", (1,), (3, 9), 2),)


def test_a_preset_is_changed_by_the_file_and_by_options(tmp_path: Path) -> None:
    """Entry by entry; the option wins."""
    text = 'preset = "resnet50"\n[run]\nworkers = 8\nsteps = 2\n'
    scenario = read(tmp_path, text, "run.steps=7", "servers.placement=chunked")
    assert (scenario.ranks, scenario.steps, scenario.shards) == (8, 7, 64)
    assert scenario.placement == "chunked"
    assert len(scenario.variables) == 161


@pytest.mark.parametrize(
    ("algorithm", "ranks", "messages", "share"),
    [
        ("ring", 4, 6, 1.5),
        ("ring", 1, 0, 0),
        ("tree", 8, 6, 6),
        ("recursive_doubling", 8, 3, 3),
        ("recursive_doubling", 5, 3, 3),
    ],
)
def test_algorithms_cost_what_their_hops_do(
    algorithm: str, ranks: int, messages: int, share: float
) -> None:
    assert count_messages_and_payloads(algorithm, ranks) == (messages, share)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[runs]\n", "'runs' in a scenario, which there is not: did you mean 'run'"),
        ("[run]\nworker = 3\n", "'worker' in [run], which there is not: did you mean 'workers'"),
        ("[run]\nworkers = 0\n", "run.workers = 0: expected at least 1"),
        ("[run]\nworkers = 2.5\n", "run.workers = 2.5: expected a whole number"),
        ('[run]\nworkers = "8"\n', "run.workers = '8': expected a whole number"),
        ("[run]\nworkers = true\n", "expected a whole number"),
        ("[compute]\nforward_ms = -1\n", "compute.forward_ms = -1: expected at least 0"),
        ("[compute]\nforward_ms = nan\n", "expected at least 0"),
        ("[compute]\nforward_ms = inf\n", "expected at least 0"),
        ("[compute]\nnoise = 2\n", "at most 1."),
        ("[run]\nworkers = 100000000\n", "expected at most 50,000,000"),
        ("[compute]\nlayers = 1000000000\n", "expected at most 50,000,000"),
        ("[compute]\nforward_ms = 1e12\n", "expected less than a year"),
        ("[servers]\nvariables = [1000000000000000]\n[run]\nworkers = 900\n", "less than a year"),
        ("run = 3\n", "expected a table, [run]"),
        ("[servers]\n", "no servers.variables"),
        ("[servers]\nvariables = []\n", "expected a list of whole numbers"),
        ("[servers]\nvariables = [1.5]\n", "expected a list of whole numbers"),
        ("[servers]\nvariables = [-4]\n", "expected a list of whole numbers"),
        (
            SERVERS + 'placement = "best"\n',
            "servers.placement = 'best': expected one of round_robin",
        ),
        (SERVERS + "work = [1]\n", "needs as many values of work"),
        (SERVERS + "[allreduce]\n", "[servers] and [allreduce]"),
        ('[allreduce]\nalgorithm = "star"\n', "allreduce.algorithm = 'star': expected one of ring"),
        ('[allreduce]\nalgorithm = "tree"\nhops = true\n', "only those of a ring"),
        ("[allreduce]\nbuckets = [8]\nready = [1.5]\n", "each at most 1"),
        ('[[fault]]\nphase = "lunch"\n', "fault.phase = 'lunch': expected one of data"),
        ('[[fault]]\nphase = "data"\nsteps = [3]\n', "expected [first, last]"),
        ("fault = 3\n", "[[fault]]"),
        ('preset = "vgg"\n', "no preset 'vgg'; presets are resnet50"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, text: str, part: str) -> None:
    """What was found, and what was expected."""
    with pytest.raises(InvalidArgument) as wrong:
        read(tmp_path, text)
    assert part in str(wrong.value)
    assert "\n" not in str(wrong.value)


def test_what_is_no_scenario(tmp_path: Path) -> None:
    """No file, no TOML, no TOML's letters."""
    with pytest.raises(TraceNotFound, match="nowhere"):
        load(tmp_path / "nowhere.toml")
    with pytest.raises(UnusableInput, match="is no TOML"):
        read(tmp_path, "[run")
    (tmp_path / "scenario.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UnusableInput, match="is no TOML"):
        load(tmp_path / "scenario.toml")


@pytest.mark.parametrize("change", ["workers=3", "run.workers", "run.workers=", ".=3"])
def test_a_wrong_change_is_one_sentence(change: str) -> None:
    with pytest.raises(InvalidArgument, match=r"expected TABLE\.NAME=VALUE"):
        load(Path("hepcnn"), [change])
