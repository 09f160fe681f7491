"""From live segments to Arrow files, while a run records or after it: numpy and pyarrow, nothing more.

`segments` is the entry for readers and for the end of a recording, `incremental` for the recorder's
converter, which runs in parallel with the training.
"""
