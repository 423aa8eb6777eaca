"""The model of what was not measured: closed forms, and what is fitted from a store.

Read `theory` for a formula, `scaling` for more ranks than were measured. The planner is a distribution of its own.
"""
