"""A report in an experiment tracker: its numbers as metrics, its verdict, and the page as an artefact.

Each function takes what the tracker's own library makes (a run, a writer), so none of these libraries is
imported here; a value that was not measured is no metric. Names are those of the Prometheus format
(docs/report.md), with their labels: ``tracelens/lost_ratio/cause=data``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracelens.reports.to_html import render as page_of
from tracelens.reports.to_markdown import render as markdown_of
from tracelens.reports.to_prometheus import list_gauges

if TYPE_CHECKING:
    from tracelens.model.result import Report


def list_metrics(report: Report) -> dict[str, float]:
    """Return the numbers of a report by name; no finding's own, whose names change from run to run."""
    value_by_name = {}
    for gauge in list_gauges(report):
        if not gauge.name.startswith("finding_"):
            labels = (f"/{name}={value}" for name, value in gauge.labels)
            value_by_name[f"tracelens/{gauge.name}{''.join(labels)}"] = float(gauge.value)
    return value_by_name


def log_to_tensorboard(report: Report, writer: Any, step: int | None = None) -> None:
    """Log scalars, and the report as a text.

    Args:
        report: What `tracelens.analyze` returned.
        writer: A `torch.utils.tensorboard.SummaryWriter`, or one of tensorboardX.
        step: The global step that it is logged at.
    """
    for name, value in list_metrics(report).items():
        writer.add_scalar(name, value, step)
    writer.add_text("tracelens/report", markdown_of(report), step)


def log_to_mlflow(report: Report, client: Any, run_id: str, step: int = 0) -> None:
    """Log metrics, the verdict as a tag, and the page and the JSON report as artefacts.

    Args:
        report: What `tracelens.analyze` returned.
        client: An `mlflow.MlflowClient`.
        run_id: The run, such as ``mlflow.active_run().info.run_id``.
        step: The step that it is logged at.
    """
    for name, value in list_metrics(report).items():
        client.log_metric(run_id, name.replace("=", "."), value, step=step)  # which it refuses
    client.set_tag(run_id, "tracelens.verdict", report.verdict.headline)
    client.log_text(run_id, page_of(report), "tracelens/report.html")
    client.log_dict(run_id, report.to_dict(), "tracelens/report.json")


def log_to_wandb(report: Report, run: Any, step: int | None = None) -> None:
    """Log metrics, the verdict in the run's summary, and its findings.

    Args:
        report: What `tracelens.analyze` returned.
        run: What `wandb.init` returned.
        step: The step that it is logged at.
    """
    run.log(list_metrics(report), step=step)
    run.summary["tracelens/verdict"] = report.verdict.headline
    run.summary["tracelens/findings"] = [finding.sentence for finding in report.findings]
