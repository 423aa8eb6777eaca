"""More ranks than were measured, and closed forms.

Read `curve`, `average` and `outlook` for a series; `from_store` and `table_series` are where series come from. The
planner, a distribution of its own, shares `table` and `more_ranks`. `theory` has formulas.
"""
