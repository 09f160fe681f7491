"""Where layers are recorded, a late rank's finding tells which of them it is, or that all are."""

from typing import Any

from support.runs.traces import call, span, trace_of

from tracelens.load import prepare
from tracelens.model.findings import Finding
from tracelens.verdicts.report import analyze

MS = 1_000_000
LAYERS = 6
USUAL_MS = 10


def judge(slow: dict[int, float]) -> Finding:
    """Analyze a run whose rank 2 of 4 is slower by a factor in the backprop of some layers."""
    rows: list[dict[str, Any]] = []
    begin_ns = 10**12
    for step in range(60):
        arrivals_ns = []
        for rank in range(4):
            now_ns = begin_ns
            layers = []
            for layer in reversed(range(LAYERS)):
                jitter = (step * 7 + rank * 5 + layer * 3) % 11 * MS // 50
                took = round(USUAL_MS * MS * (slow.get(layer, 1.0) if rank == 2 else 1.0)) + jitter
                layers.append(
                    span(rank, "backprop", now_ns, now_ns + took, f"conv{layer}", depth=2)
                )
                now_ns += took
            whole = span(rank, "backprop", begin_ns, now_ns, "backprop", depth=1)
            arrivals_ns.append(now_ns)
            rows += [fields | {"step": step} for fields in (whole, *layers)]
        over = max(arrivals_ns) + MS
        for rank in range(4):
            rows.append(span(rank, "step", begin_ns, over, step=step))
            rows.append(call(rank, step, arrivals_ns[rank], over, step=step))
        begin_ns = over
    (finding,) = (
        fields for fields in analyze(prepare(trace_of(rows, ranks=4))).findings if fields.ranks
    )
    return finding


def test_one_slow_layer_is_named() -> None:
    late = judge({4: 2.0})
    assert (late.ranks, late.phase, late.function) == ((2,), "backprop", "conv4")
    assert "100 % of the delay is in conv4." in late.sentence
    assert late.evidence["parts"][0]["name"] == "conv4"
    assert late.evidence["parts"][0]["usual_ns"] > 9 * MS


def test_two_slow_layers_are_named() -> None:
    late = judge({1: 1.6, 3: 1.6})
    assert late.function is None
    assert "of the delay is in conv1 and conv3." in late.sentence


def test_a_delay_in_all_layers_names_all() -> None:
    late = judge(dict.fromkeys(range(LAYERS), 1.3))
    assert f"All {LAYERS} parts of backprop are slower alike." in late.sentence
    assert len(late.evidence["parts"]) == LAYERS


def test_half_of_the_layers_are_no_place() -> None:
    """Nor is it all of them: nothing is said beyond the numbers."""
    late = judge(dict.fromkeys(range(3), 1.5))
    assert "conv" not in late.sentence
    assert "alike" not in late.sentence
