"""Level of detail: which few pixels show millions of spans so that no late rank gets lost.

`lanes` holds the spans as rows of arrays, `pyramid` and `pyramid` what most of each stretch of time was,
`viewport` snaps what is looked at to pixel columns, `viewport` gives every lane its height, `raster`
paints palette indexes, `raster` packs them, and `query` chooses the level: lateness per step, what most
of a pixel was, sampled spans, or the spans themselves.

`run_data` is all that pages show of a run, `index` keeps it on disk (`index` says where, `files` how),
`run_data` is what a list of runs shows of it, and `opening` gets an index or makes it.
"""
