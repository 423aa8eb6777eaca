"""More ranks than were measured, and closed forms.

Read `curve`, `average` and `outlook` for a series; `from_store` and `table` are where series come from. `theory` has
formulas; the planner is a distribution of its own.
"""
