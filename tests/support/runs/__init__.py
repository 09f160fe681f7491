"""Runs made by hand or simulated, in memory and as files."""
