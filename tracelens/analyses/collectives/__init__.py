"""Collectives and messages: arrival skew, bandwidth and cost of a call, slow links, congestion."""
