"""What runs within any training process: it times steps, looks at threads, and reads what the kernel counts.

`watch`, `benchsuite run` and trials share it; `analysis` judges what it finds. It needs Python 3.10 and the standard
library alone, and imports its own modules relatively: `run` loads it into other people's jobs under another name.
Read `samples`, `loop`, `looks` and `frames`, then `training` and `job`.
"""
