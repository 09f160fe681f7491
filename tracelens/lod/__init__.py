"""Level of detail: few pixels show millions of spans, and no straggler is lost among them.

`lanes` holds the spans as rows of arrays, `pyramid` the dominant category of each stretch of time,
`viewport` snaps the window to pixel columns and gives every lane its height, `raster` paints palette
indexes and packs them, and `query` chooses the level: residuals per step, the dominant category per
pixel, sampled spans, or all spans.

`run_data` is all that pages show of a run, and the summary that a list of runs shows; `index` keeps it
on disk in the format of `files`, and `opening` opens an index or makes it.
"""
