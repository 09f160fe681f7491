"""Spans that are timed on a device, too: its clock, its times, the devices that there are."""
