"""Losses of every shape, planted into simulated jobs, and whether reports see them.

Nothing in here uses the analyses of TraceLens or its simulator: jobs, losses and right answers are
written from the definition of the verdict alone, so that they can contradict the detectors.

`bench.py` runs it. `catalog.py` lists all shapes of loss and the controls (jobs without one).
"""
