"""Engines: other libraries, and other exchanges of gradients, that train the same models as PyTorch's own modes do.

An engine is one file with a function `train`, which returns the same `Training` as a mode does, and a row in
`workloads/engine.py`, which says what can be asked of it. Read that, then `broadcast`, the shortest, `parameter_server`
with its `server`, `horovod`, `deepspeed`.
"""
