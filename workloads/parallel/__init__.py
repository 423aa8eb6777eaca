"""How a model is parallelized over ranks. Read `apply` first, then `modes` and `pipeline`, then `step`."""
