"""What changed from some baseline runs to a new one: metric by metric, finding by finding, and gates.

`compare` measures, `gates.judge` decides, and `formats` writes it down; the dashboard draws the same.
What the numbers mean: docs/compare.md.
"""

from tracelens.comparison.changes import Comparison, Metric, compare
from tracelens.comparison.series import RunMetrics

__all__ = ["Comparison", "Metric", "RunMetrics", "compare"]
