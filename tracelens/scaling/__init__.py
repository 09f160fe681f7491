"""How runs of several sizes scale: efficiency, the factor that loses it, and a forecast.

`Point.from_run` measures a run, `curves` compares them, and `formats` writes it down (docs/scaling.md).
"""

from tracelens.scaling.curves import Curve, Row, Scaling, curves
from tracelens.scaling.points import Point

__all__ = ["Curve", "Point", "Row", "Scaling", "curves"]
