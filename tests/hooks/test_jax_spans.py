"""What XLA ran becomes collectives, counted alike in all processes, and computation by step."""

from __future__ import annotations

import pytest

from tracelens_instrument.hooks.jax import Operation, ProfiledSpan, spans_of

US = 1000
STEPS = {7: 0, 8: 10_000 * US}


def _ran(name: str, begin_us: int, end_us: int, device: int = 0) -> Operation:
    return Operation(name, "jit_step", device, begin_us * US, end_us * US)


def _spans_in(*operations: Operation) -> list[ProfiledSpan]:
    return list(spans_of(operations, STEPS))


def test_collectives_are_counted_by_operation() -> None:
    """In order of time, not in the order in which they were read."""
    spans = _spans_in(
        _ran("all-reduce.1", 11_000, 11_200),
        _ran("all-reduce.1", 1_000, 1_200),
        _ran("psum.3", 1_300, 1_400),
    )
    assert [(seen.name, seen.op, seen.seq, seen.step) for seen in spans] == [
        ("jit_step/all-reduce.1", "allreduce", 0, 7),
        ("jit_step/psum.3", "allreduce", 0, 7),
        ("jit_step/all-reduce.1", "allreduce", 1, 8),
    ]


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("psum_invariant.28", "allreduce"),
        ("psum_scatter", "reduce_scatter"),
        ("reduce-scatter.2", "reduce_scatter"),
        ("all-gather", "all_gather"),
        ("all_to_all.1", "all_to_all"),
        ("dot.1", None),
        ("multiply_add_fusion", None),
    ],
)
def test_operations_by_their_names(name: str, op: str | None) -> None:
    (seen,) = _spans_in(_ran(name, 10, 20))
    assert seen.op == op


def test_computation_is_put_together() -> None:
    """Operations that touch are one span; a pause parts them."""
    found = _spans_in(_ran("dot", 0, 100), _ran("add", 110, 200), _ran("dot.1", 900, 950))
    assert [(seen.start_ns // US, seen.end_ns // US) for seen in found] == [(0, 200), (900, 950)]


def test_one_device_speaks_for_a_process() -> None:
    """Else a collective of two devices would be two."""
    found = _spans_in(_ran("all-reduce", 10, 20), _ran("all-reduce", 11, 21, device=1))
    assert len(found) == 1


def test_what_was_before_the_first_step_is_none() -> None:
    assert not list(spans_of([_ran("all-reduce", 0, 10)], {3: 50 * US}))
