"""The central values: a `Trace` in, a `Report` out, and how their numbers are written."""
