"""Records for other programs: figures and samples in their formats.

A file for each format; `asv` and `charts` are the largest.
"""
