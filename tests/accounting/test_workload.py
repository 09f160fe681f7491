"""Where steps tell their samples or tokens, more work is told from slower work."""

from typing import Any

import numpy as np
from support.runs.traces import call, span, trace_of

from tracelens.load import prepare
from tracelens.model.findings import Finding
from tracelens.verdicts.report import analyze

MS = 1_000_000
STEPS, RANKS = 80, 6
NS_PER_TOKEN = 20_000


def finding_of_kind(tokens: np.ndarray, slow: np.ndarray, kind: str) -> Finding:
    """Analyze a run with these tokens and slowdown factors, both as [step, rank]."""
    rows: list[dict[str, Any]] = []
    begin_ns = 10**12
    for step in range(STEPS):
        took_ns = (tokens[step] * slow[step] * NS_PER_TOKEN).astype(int).tolist()
        end_ns = begin_ns + max(took_ns) + MS
        for rank in range(RANKS):
            rows.append(span(rank, "step", begin_ns, end_ns, step=step))
            rows.append(span(rank, "backprop", begin_ns, begin_ns + took_ns[rank], step=step))
            rows.append(call(rank, step, begin_ns + took_ns[rank], end_ns, step=step))
            counter = {"type": "counter", "value": float(tokens[step, rank])}
            rows.append(span(rank, "step", end_ns, end_ns, "tokens", step=step, **counter))
        begin_ns = end_ns
    findings = analyze(prepare(trace_of(rows, ranks=RANKS))).findings
    (finding,) = (candidate for candidate in findings if candidate.kind == kind)
    return finding


def noise(by: float, seed: int) -> np.ndarray:
    return 1 + by * np.random.default_rng(seed).standard_normal((STEPS, RANKS))


def test_token_counts_explain_uneven_work() -> None:
    finding = finding_of_kind((1000 * noise(0.25, 1)).round(), noise(0.01, 2), "load_imbalance")
    assert finding.evidence["explained_by"] == "tokens"
    assert finding.evidence["explained"] > 0.95
    assert "the number of tokens per rank varies, which explains" in finding.sentence


def test_token_counts_that_explain_nothing_are_reported() -> None:
    finding = finding_of_kind((1000 * noise(0.01, 1)).round(), noise(0.25, 2), "load_imbalance")
    assert finding.evidence["explained"] < 0.1
    assert "not with its tokens" in finding.sentence


def test_a_rank_with_more_tokens_is_a_straggler_with_more_work() -> None:
    tokens = (1000 * noise(0.02, 1)).round()
    tokens[:, 2] *= 1.3
    finding = finding_of_kind(tokens, noise(0.01, 2), "straggler")
    assert finding.ranks == (2,)
    assert 1.25 < finding.evidence["work"]["tokens"] < 1.35
    assert " % more tokens than the others." in finding.sentence
    low, high = finding.evidence["extra_interval_ns"]
    assert low < finding.evidence["extra_ns"] < high


def test_a_rank_that_is_slow_with_equal_tokens_has_no_more_work() -> None:
    slow = noise(0.01, 2)
    slow[:, 2] *= 1.3
    told = finding_of_kind((1000 * noise(0.02, 1)).round(), slow, "straggler")
    assert 0.95 < told.evidence["work"]["tokens"] < 1.05
    assert "more tokens" not in told.sentence
