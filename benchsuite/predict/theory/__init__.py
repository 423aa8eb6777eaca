"""Closed forms that the suite and the planner share, each with its source.

Read `collectives`, then `alpha_beta_fit`; `schedules` draws pipelines, `roofline` says what a device can reach.
"""
