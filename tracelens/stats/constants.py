"""Numbers that analyses share: what each means, and in what unit.

All other packages have a constant for each use, in the module of the test (CONTRIBUTING.md, Constants).
This table holds those of `tracelens/analyses`, until they are split as well.
"""

from __future__ import annotations

from typing import Final

# Noise
FALSE_RATE: Final = 0.003  # probability: that noise alone has anybody of a healthy run accused
CLEAR: Final = 3  # standard errors: from here on a difference is one
FAR_OUT: Final = 6.0  # standard deviations: a single step stands out
CUT: Final = 2.0  # standard deviations: what is farther out counts no more
BETWEEN_RANK_SIGMA: Final = 0.003  # of a step: by so much equal ranks differ, for good or not
MOST_FREEDOM: Final = 60  # degrees of freedom: noise is known no better

# So many tell
FEW: Final = 3  # ranks, hosts, stalls, steps: a few; fewer do not tell what is usual
MANY: Final = 16  # ranks, steps, calls: one of so many hardly moves what is usual
FEWEST_STEPS: Final = 30  # steps: fewer are not judged
BLOCK: Final = 4  # steps: neighbours that are taken together; what is shorter is a stall
FEWEST_ROUNDS: Final = 20  # steps: of an exchange with servers; fewer are not judged
FEWEST_MESSAGES: Final = 64  # messages: fewer do not tell how fast a link is
PARTS_OF_RUN: Final = 8  # parts: in all of which something lasting is seen

# Shares, and ratios
SEEN: Final = 0.02  # share: of the time on a link, for a number of messages to have a goodput
ENOUGH: Final = 0.25  # share: so much of something shows how it is
MAJORITY: Final = 0.5  # share: most
PERSISTENT: Final = 0.6  # share: of the run; what lasts so long is how it is
CONSISTENT: Final = 0.75  # share: by and large
NEARLY_ALL: Final = 0.9  # share: hardly with an exception
BUSY: Final = 0.8  # share: at work for so long, a part of a server binds
CLEARLY_SLOWER: Final = 1.5  # times: what others take

# Delays
LEAST_DELAY: Final = 0.015  # of a step: the least, of one rank among many
LEAST_OF_STEP: Final = 0.05  # of a step: the least by which ranks, or stages, are uneven
LARGE_DELAY: Final = 0.10  # of a step: the least, where little shows what is usual

# Policy: what is worth a sentence
# Two healthy pairs differed by 10 and 13 % of a step from begin to end: docs/accuracy.md.
FAULT_OF_A_PAIR: Final = 0.15  # of a step: by less, equal processes differed for whole runs
WORTH_WITH_PEERS: Final = 0.003  # of the job: must be lost by who stands out from many peers
WORTH: Final = 0.01  # of the job: must be lost
NOTICEABLE: Final = 0.03  # of the job: must be lost where there are no such peers, or be gained
WORTH_ADVICE: Final = 0.05  # of the job: must be gained where only a model speaks for it
BOUND: Final = 0.2  # of the job: what all ranks do for so long bounds the run
MODERATE: Final = 0.02  # of the job: a finding is no minor one
CRITICAL: Final = 0.1  # of the job: a finding is critical

# Policy: what a report shows
SHOWN_ROWS: Final = 64  # rows: of a table
SHOWN_PARTS: Final = 8  # parts: of a finding
MOST_OF_A_KIND: Final = 256  # stretches, calls: stand for all
MOST_STEPS: Final = 2000  # steps: of a longer run, one stands for some neighbours
MOST_STRETCHES: Final = 1 << 16  # stretches: of a path
SIZE_CLASS: Final = 4  # times: from one class of sizes to the next

# Policy: work, and what is too little to be known
ROUNDS: Final = 4  # rounds: of fitting levels
ROUNDS_OF_RATES: Final = 500  # rounds: of fitting rates
PIECES_OF_MEMORY: Final = 32  # parts: of the memory, one for each piece of work
NEGLIGIBLE: Final = 1e-3  # share: of less, nothing depends
ROUNDING: Final = 1e-9  # share: less is none
SLOWEST_NETWORK: Final = 0.001  # bytes / ns: no training goes over less than 1 MB/s
ONE_CALL_NS: Final = 10_000  # ns: messages of a rank that end within this end with one call
LEAST_SEEN_NS: Final = 10**8  # ns: of a phase on a rank, or its samples say nothing
