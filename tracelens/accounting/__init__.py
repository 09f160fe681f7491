"""Accounting: every nanosecond of every worker in exactly one category, and the sums made of that."""
