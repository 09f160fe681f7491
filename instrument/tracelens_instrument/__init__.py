"""What runs inside training processes: the recorder, and hooks into frameworks.

It imports the standard library and `tracelens.schema` only; numpy and pyarrow when recording has ended,
mostly in a process of its own, and a framework in that framework's hook.
"""
