"""Closed forms that the scaling model and the planner share, each with its source.

Read `collectives`, then `pipeline`; a whole step is `layout.step`.
"""
