"""Level of detail: which few pixels show millions of spans so that no late rank gets lost.

`lanes` holds the spans as rows of arrays, `window` snaps what is looked at to a grid of pixel
columns, `rows` gives every lane its height, `raster` paints palette indexes, `png` packs them, and
`query` chooses the level: lateness per step, sampled spans, or the spans themselves.
"""
