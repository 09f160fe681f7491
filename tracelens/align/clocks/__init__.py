"""Clocks of different hosts become one (methods: docs/clocks.md).

`common.align` chooses the best way that each clock allows: `exits` of collectives, `readings` that
processes took of each other's clocks, or `requests` to parameter servers. Each way ends in a
`tracelens.model.clock_map.ClockMap`.
"""
