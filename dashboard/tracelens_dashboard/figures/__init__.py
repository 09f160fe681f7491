"""Pure functions from data and a theme to a `Drawing`; no Dash, no callbacks, no store."""
