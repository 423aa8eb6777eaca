"""From a sweep file to its points, and to the points that are skipped, each with the reason why.

What is valid stands here, once. Read `expand`, then `layers`, then `mistakes`.
"""
