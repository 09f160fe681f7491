"""Names from a trace stay inert on a page, and numbers stay with their units."""

from tracelens_dashboard import text


def test_a_name_from_a_trace_is_inert() -> None:
    """Markup that Plotly would read is escaped, and an endless name is cut."""
    assert text.escape_name("<a href='x'>&</a>") == "&lt;a href='x'&gt;&amp;&lt;/a&gt;"
    assert len(text.escape_name("x" * 5000)) == text.LONGEST_NAME
    assert text.escape_name("a\u202eb") == "a\\x202eb"
    assert text.escape_name(None) == ""


def test_a_number_stays_with_its_unit() -> None:
    """A heading breaks before a number, never between it and what it counts."""
    tied = text.tie_units("68 to 160 %, +61.2 ms a step, 3 steps of 2 GiB")
    assert (
        tied.replace("\N{NO-BREAK SPACE}", "_") == "68 to 160_%, +61.2_ms a step, 3 steps of 2_GiB"
    )
