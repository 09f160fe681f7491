"""Titles of pages and cards in the field's words, and a sentence about each behind a "?"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import dash_mantine_components as dmc
from dash import dcc, html

from tracelens_dashboard.ids import aria

if TYPE_CHECKING:
    from dash.development.base_component import Component

GLOSSARY: Final = "/glossary"

# By title. The words themselves are defined in docs/glossary.md, which the page "Glossary" shows.
EXPLAINED: Final = {
    "Stragglers": "Ranks whose compute time exceeds that of their peers, so that others wait for them.",
    "Residual by rank and step": (
        "Compute time of a rank in a step minus its peers' median. The scale ends between a fifth of a "
        "step and a whole one, so noise stays pale."
    ),
    "Residual by host and step: the worst rank of each host": (
        "The largest residual of a host's ranks in a step: compute time minus the peers' median. A mean "
        "over the host would hide a single rank."
    ),
    "Residual by phase": "The mean residual per step of the worst ranks, by the phase it is in.",
    "Steps": "How long steps take: their time over the run, by rank, and as a distribution.",
    "Step time over the run": (
        "The median and the slowest rank of each step. A regime is a part of the run whose step time "
        "keeps another level."
    ),
    "Step time by rank and step": (
        "The longest step of each cell. The scale ends at 2.5 times the median step at most, so a few "
        "warm-up steps do not use its colours up."
    ),
    "Step time distribution": "How many steps of ranks lasted how long, with p50, p90 and p99.",
    "Collectives": "Arrival skew and transfer: whether ranks wait for each other, or for the network.",
    "Wait and transfer per step": (
        "Time in collectives per rank and step: until the last arrival it is wait, after it transfer."
    ),
    "Arrival skew per step": "Last arrival minus first arrival of the step's calls, and who was last.",
    "Last arrivals": (
        "In how many calls a rank arrived last, beside what chance gives (whiskers); wait caused alone "
        "is what all waited for that one rank."
    ),
    "Arrival skew: distribution": "Calls by arrival skew; below clock uncertainty it is not known.",
    "Bandwidth by message size": (
        "Filled: bus bandwidth; hollow: algorithm bandwidth; a colour for each operation, number of "
        "ranks and algorithm. Dashed: the fitted cost model."
    ),
    "Links between ranks": (
        "Bandwidth of messages between two ranks, the slowest first. Red: a finding names the link."
    ),
    "Communication overlap": "How much communication is hidden behind compute, and what is exposed.",
    "Overlapped and exposed communication per step": (
        "Communication of the mean rank per step: beside compute, exposed, or waiting for others."
    ),
    "Overlap per bucket": "The same for each gradient bucket or shard, per call.",
    "Gradient-to-weight latency per bucket": (
        "From a gradient's being ready to the next use of its weights. Bars: the median of each stage; "
        "the mark: the median of the whole."
    ),
    "Gaps between optimizer updates": "From the end of an optimizer update to the begin of the next.",
    "Parameter servers": "Load of the shards, their traffic with workers, and variable placement.",
    "Load per shard": "Bytes, requests, queue and service time of each shard beside the mean (dotted).",
    "Bytes between workers and shards": "Bytes that each worker exchanged with each shard, both ways.",
    "Tensors per shard": "Bytes per step of a shard's largest tensors, and what of the shard they are.",
    "Variable placement": (
        "Bytes of the fullest shard under other placements. Effective shards: mean load over max load, "
        "times their number."
    ),
    "Staleness and fairness": (
        "How many updates of others came between a worker's read and its own update, and how often "
        "each worker gets its turn."
    ),
    "Critical path": "The chain of work and communication that the job is as long as.",
    "Ranks on the path, per step": "On which rank the critical path was, step by step, by its phase.",
    "Composition": "Shares of the critical path by rank, phase or host.",
    "Longest segments": "The longest stretches of the path on one rank in one phase.",
    "Slack": "By how much a rank could be later without making the job longer; none: it is critical.",
    "Sampled stacks": "Python code that samples met on a rank, compared with the median of its peers.",
    "Calls (red: longer than on peers)": "Who called whom; width: time on the stack.",
    "Functions by residual against peers": "Self time of functions here minus the median peer's.",
    "Time on the stack": "When the chosen function was on the stack of which rank.",
    "What if": "How long steps would be if something were different: the run is replayed with edits.",
    "One step, before and after": (
        "What ranks do in a step: replayed as it was, and below with the edits. The step is over on "
        "all ranks at the dotted line."
    ),
    "What every single edit would save": (
        "The mean step's saving by each edit alone, with its 95 % interval; they do not add up."
    ),
    "Compare": "What changed from another run to this one, with intervals.",
    "Ratio to the baselines": (
        "What a usual step has of each, over the mean of the baselines, with its 95 % interval. "
        "Coloured: equal runs would rarely differ so far."
    ),
    "Step time of each run": (
        "The median step (dot) and the middle 80 % of the steps (line) of the new run and each baseline."
    ),
    "Compute time difference by rank and step": (
        "Compute time of this run minus the other's; teal: faster, orange: slower, pale: within noise."
    ),
    "Step time by category": "Time of the mean rank per step, by the category it belongs to.",
    "Where the time went": (
        "From total rank time down to parallel efficiency, each loss by its cause, after POP."
    ),
    "Scaling": "What becomes of efficiency with more workers or servers, and which factor loses it.",
    "Efficiency and its factors": (
        "Efficiency against the smallest run: the product of POP's factors, each as a share of the "
        "smallest run's."
    ),
    "Step time by size": "The length of a step; a forecast is hollow, with its 95 % interval.",
    "Side by side": "Two runs at the same step; both timelines have one time axis and one colour scale.",
}


def page_title(title: str) -> Component:
    """Return a page's title and what it means."""
    return dmc.Group(
        [dmc.Title(title, order=1, className="page-title"), _what_is(title)],
        className="page-head",
        gap="xs",
    )


def card_title(title: str, *, suffix: str = "") -> Component:
    """Return a card's title and what it means; a `suffix`, such as a run's name, belongs to no word."""
    shown = dmc.Title(title + suffix, order=2, className="card-title")
    return dmc.Group([shown, _what_is(title)], className="card-head", gap=6, wrap="nowrap")


def _what_is(title: str) -> Component:
    """Return the "?" of a title; what it opens stays open until it is closed."""
    name = aria(f"what is: {title}")
    way = dcc.Link("Glossary", href=GLOSSARY, className="way")
    says = html.Div([html.P(EXPLAINED[title]), way], className="what-says")
    return html.Details([html.Summary("?", className="what", **name), says], className="what-is")
