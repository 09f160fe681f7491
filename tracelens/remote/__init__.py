"""Traces that are not on this machine: addresses, listings, copies in the user's cache."""
