"""More ranks than were measured, and closed forms.

Read `curve`, `average` and `outlook` for a series; `from_store` and `table_series` are where series come from, the
latter by `table`. `theory` has formulas; the planner is a distribution of its own.
"""
