"""Hostile inputs for the command line: valid files of every format, changed in their structure.

`python -m support.hostile` writes one file or folder for each number and gives it to a verb, in a
process of its own with limits. Inputs depend on their number alone. It is written from docs/format.md
and from the descriptions of the formats, without a look at the readers, so that it does not share their
assumptions.
"""
