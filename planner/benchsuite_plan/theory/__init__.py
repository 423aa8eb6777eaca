"""Closed forms of FLOPs, memory and pipelines, each with its source; a whole step is `layout.step`."""
