"""Stragglers: detection, episodes of one cause and their price, location in the code, findings."""
