"""Every number that was chosen: what it means, and in what unit.

A concept has one value, wherever it is met. `make bench NAME=calibrate` tries others on runs whose
truth is known and writes this table; docs/calibration.md says how, and what came out. What is worth
a sentence, what a report shows, and how much work is done at once is policy: no run can tell it.
"""

from __future__ import annotations

from typing import Final

# Noise
FALSE_RATE: Final = 0.003  # probability: that noise alone has anybody of a healthy run accused
RISK: Final = 0.05  # probability: that equal runs are said to differ
CLEAR: Final = 3  # standard errors: from here on a difference is one
FAR_OUT: Final = 6.0  # standard deviations: a single step stands out
CUT: Final = 2.0  # standard deviations: what is farther out counts no more
TAIL: Final = 0.5  # standard deviations beyond a level: more does not say where it begins
BETWEEN_RANK_SIGMA: Final = 0.003  # of a step: by so much equal ranks differ, for good or not
RUN_SIGMA: Final = 0.01  # share: by so much equal runs differ, for good or not
SPREAD_FREEDOM: Final = 3  # degrees of freedom: of what is known before anything is seen
NOISE_FREEDOM: Final = 0.09  # degrees of freedom: that each value adds
MOST_FREEDOM: Final = 60  # degrees of freedom: noise is known no better

# So many tell
FEW: Final = 3  # ranks, hosts, stalls, steps: a few; fewer do not tell what is usual
MANY: Final = 16  # ranks, steps, calls: one of so many hardly moves what is usual
FEWEST_STEPS: Final = 30  # steps: fewer are not judged
BLOCK: Final = 4  # steps: neighbours that are taken together; what is shorter is a stall
MOST_PARTS: Final = 64  # blocks, sizes: distinguished at most
FEWEST_ROUNDS: Final = 20  # steps: of an exchange with servers; fewer are not judged
FEWEST_MESSAGES: Final = 64  # messages: fewer do not tell how fast a link is
PARTS_OF_RUN: Final = 8  # parts: in all of which something lasting is seen
PAIR_WINDOW: Final = 40  # steps: so long two ranks must differ, or a quarter of the run

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
BINS_PER_DECADE: Final = 20  # bins: of a histogram
SIZE_CLASS: Final = 4  # times: from one class of sizes to the next

# Policy: work, and what is too little to be known
ROUNDS: Final = 4  # rounds: of fitting levels
MOST_ROUNDS: Final = 40  # rounds: of fitting lines
ROUNDS_OF_RATES: Final = 500  # rounds: of fitting rates
SAMPLES: Final = 400  # samples: drawn for an interval
PERMUTATIONS: Final = 4999  # exchanges: of two ranks
AT_ONCE: Final = 1 << 18  # numbers: in memory
PIECES_OF_MEMORY: Final = 32  # parts: of the memory, one for each piece of work
NEGLIGIBLE: Final = 1e-3  # share: of less, nothing depends
ROUNDING: Final = 1e-9  # share: less is none
SLOWEST_NETWORK: Final = 0.001  # bytes / ns: no training goes over less than 1 MB/s
ONE_CALL_NS: Final = 10_000  # ns: messages of a rank that end within this end with one call
LEAST_SEEN_NS: Final = 10**8  # ns: of a phase on a rank, or its samples say nothing
