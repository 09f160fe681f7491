"""Modules whose functions are methods of the model's values: `Trace.from_table`, `Report.save`, pages.

They lie above the model, which imports this module by name when such a method is called
(`tracelens.model.display.upper_layers`). Import contracts see what is imported here.
"""

from tracelens import load
from tracelens.lod import timeline_page
from tracelens.reports import saving, to_html, to_json, to_markdown

__all__ = ["load", "saving", "timeline_page", "to_html", "to_json", "to_markdown"]
