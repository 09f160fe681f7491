"""Samples of the call stacks of a rank, taken from outside by py-spy.

`launch` runs in the rank and starts `sampler`, a process of its own, which runs py-spy, and turns
what it wrote into an Arrow stream on the rank's clock (`timeline`).
"""
