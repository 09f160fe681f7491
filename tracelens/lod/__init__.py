"""Level of detail: which few pixels show millions of spans so that no late rank gets lost.

`lanes` holds the spans as rows of arrays, `levels` and `pyramid` what most of each stretch of time was,
`window` snaps what is looked at to pixel columns, `rows` gives every lane its height, `raster` paints
palette indexes, `png` packs them, and `query` chooses the level: lateness per step, what most of a pixel
was, sampled spans, or the spans themselves.

`run` is all that pages show of a run, `index` keeps it on disk (`home` says where, `files` how),
`glance` is what a list of runs shows of it, and `opening` gets an index or makes it.
"""
