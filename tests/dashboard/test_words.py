"""Names from a trace stay inert on a page."""

from __future__ import annotations

from tracelens_dashboard import text


def test_a_name_from_a_trace_is_inert() -> None:
    """Markup that Plotly would read is escaped, and an endless name is cut."""
    assert text.safe("<a href='x'>&</a>") == "&lt;a href='x'&gt;&amp;&lt;/a&gt;"
    assert len(text.safe("x" * 5000)) == text.LONGEST_NAME
    assert text.safe("a\u202eb") == "a\\x202eb"
    assert text.safe(None) == ""
