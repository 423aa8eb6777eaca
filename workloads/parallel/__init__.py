"""How a model is spread over ranks. Read `apply.py` first, then the recipes: data, tensor, pipeline, expert."""
