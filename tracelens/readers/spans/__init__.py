"""From rows of spans in our own words to a `Trace`: what every reader of another format ends with.

A reader translates (times to nanoseconds, words to `tracelens.schema.vocabulary`), hands its rows over
to `build`, and says in a `Recognition` what it did not understand. `rows` drops what is unusable and
describes the processes, `streams` finds what ran on devices, `inferred` what rows seldom hold.
"""

from tracelens.readers.spans.build import Origin, build

__all__ = ["Origin", "build"]
