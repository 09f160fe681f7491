"""What runs inside training processes: the recorder, and hooks into frameworks.

It imports the standard library and `tracelens.schema` only; numpy and pyarrow when recording has
ended, mostly in a process of its own, and a framework in that framework's hook. Downwards only:
`hooks` (one file or folder a framework), `recorder` (what training code and hooks call), `lifecycle`
and `recording` (one process's recording), `stacks`, `device`, `retention`, `storage`, and `core`
(spans, and all that is below).
"""
