"""How it is drawn: pure functions from tables to Plotly figures, a module a page, and what they share.

Shared are `drawing` (what each function returns), `axes`, `histogram` and `stacked_steps`.
"""
