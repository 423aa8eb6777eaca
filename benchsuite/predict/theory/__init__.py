"""Closed forms that the scaling model and the planner share, each with its source.

Read `collectives`, then `pipeline`, then `transformer_step`.
"""
