"""Samples of the call stacks of a rank, taken from outside by py-spy.

`beside` runs in the rank and starts `sampler`, a process of its own, which runs py-spy, ties its clock
to the rank's by `markers`, and turns what it wrote (`chrome`) into an Arrow stream.
Files are named in short (`places`).
"""
