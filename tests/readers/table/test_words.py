"""Kinds and operations are understood in the words that people use; unknown ones are kept."""

from typing import Any

import pytest

from tracelens import Trace
from tracelens.errors import UnusableInput
from tracelens.schema.vocabulary import KINDS, OPS


def read(**columns: list[Any]) -> Trace:
    count = len(next(iter(columns.values())))
    times = {"rank": [0] * count, "start_ns": range(0, 10 * count, 10)}
    return Trace.from_table({**times, "duration_ns": [5] * count, **columns})


def kinds_and_operations(trace: Trace) -> list[tuple[str, str | None]]:
    return [tuple(row) for row in trace.events.collect().select("kind", "op").iter_rows()]


# A word, its kind, and its operation.
USUAL_WORDS: list[tuple[str, str, str | None]] = [
    ("backward", "backprop", None),
    ("bwd", "backprop", None),
    ("BWD", "backprop", None),
    ("fwd", "forward", None),
    ("forward.3", "forward", None),
    ("allreduce", "reduction", "allreduce"),
    ("all_reduce", "reduction", "allreduce"),
    ("AllReduce", "reduction", "allreduce"),
    ("MPI_Allreduce", "reduction", "allreduce"),
    ("nccl:all_reduce", "reduction", "allreduce"),
    ("ncclAllGather", "reduction", "all_gather"),
    ("c10d::broadcast", "reduction", "broadcast"),
    ("Reduce-Scatter", "reduction", "reduce_scatter"),
    ("comm", "reduction", None),
    ("optimizer", "update", None),
    ("Optimizer.step", "update", None),
    ("update", "update", None),
    ("push", "ps", "push"),
    ("pull", "ps", "pull"),
    ("ps_service", "ps", "apply"),
    ("elastic", "elastic", None),
    ("turn_wait", "elastic", "turn_wait"),
    ("DataLoader", "data", None),
    ("load", "data", None),
    ("wait", "wait", None),
    ("idle", "wait", None),
    ("ckpt", "checkpoint", None),
    ("ProfilerStep#12", "step", None),
]


@pytest.mark.parametrize("column", ["kind", "name", "op"])
def test_usual_words_have_their_kind_and_operation(column: str) -> None:
    """As a kind, as the only thing that a name tells, or as an operation."""
    found = kinds_and_operations(read(**{column: [usual_word for usual_word, _, _ in USUAL_WORDS]}))
    for (usual_word, kind, op), (found_kind, found_op) in zip(USUAL_WORDS, found, strict=True):
        assert found_kind == kind, usual_word
        if column != "op" or op:
            assert found_op == op, usual_word


@pytest.mark.parametrize("kind", KINDS)
def test_our_own_words(kind: str) -> None:
    """Every kind and operation of the format means itself."""
    operations = OPS.get(kind, ())
    trace = read(kind=[kind] * (1 + len(operations)), op=[None, *operations])
    assert kinds_and_operations(trace) == [(kind, None), *((kind, op) for op in operations)]


def test_unknown_words_are_kept_and_listed() -> None:
    """Rows of unknown kinds are the rank's own work under their name, and a note counts them."""
    trace = read(kind=["shuffle"] * 3 + ["tokenize", "forward"], name=["a", "b", None, None, None])
    assert [kind for kind, _ in kinds_and_operations(trace)] == ["user"] * 4 + ["forward"]
    assert trace.events.collect()["name"].to_list() == ["a", "b", "shuffle", "tokenize", "forward"]
    (note,) = [note for note in trace.notes if "does not know" in note.sentence]
    assert note.sentence.startswith(
        "4 spans are of a kind that TraceLens does not know: 'shuffle' (3)"
    )
    assert "'tokenize' (1)" in note.sentence
    assert "--map kind:WORD=KIND" in note.sentence


def test_the_kind_counts_before_the_name() -> None:
    """A name is only asked where neither kind nor operation is told."""
    trace = read(
        kind=["update", None, None, "strange"],
        op=[None, "allreduce", None, "allgather"],
        name=["forward", "forward", "forward", "x"],
    )
    assert kinds_and_operations(trace) == [
        ("update", None),
        ("reduction", "allreduce"),
        ("forward", None),
        ("reduction", "all_gather"),
    ]


def test_reduction_of_unknown_operation() -> None:
    """Communication that does not say what it does is communication, but matches nothing."""
    trace = read(kind=["comm", "comm"], name=["x", "x"])
    assert trace.arrivals.is_empty()
    assert any("name no operation" in note.sentence for note in trace.notes)


@pytest.mark.parametrize(("word", "role"), [("server", "ps"), ("Trainer", "worker"), ("ps3", "ps")])
def test_usual_words_for_roles_are_known(word: str, role: str) -> None:
    """Workers and servers under their usual names."""
    assert read(kind=["apply"], role=[word]).processes["role"].to_list() == [role]


def test_an_unknown_role_is_refused() -> None:
    """Who is neither cannot be put anywhere: one sentence says how to tell."""
    with pytest.raises(UnusableInput, match=r"role 'observer' is not known.*--map role:observer="):
        read(kind=["step"], role=["observer"])


def test_who_only_serves_is_a_server() -> None:
    """Without a role, a rank that only serves parameters is a server."""
    table = {
        "rank": [0, 0, 1],
        "start_ns": [0, 10, 12],
        "end_ns": [10, 20, 18],
        "kind": ["forward", "push", "ps_service"],
        "shard": [-1, 0, 0],
    }
    trace = Trace.from_table(table)
    assert trace.processes.select("role", "rank", "shard").rows() == [
        ("worker", 0, None),
        ("ps", 1, 0),
    ]
