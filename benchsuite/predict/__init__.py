"""The model of what was not measured: closed forms, what is fitted from a store, and the planner over both.

Read `theory` for a formula, `scaling` for more ranks than were measured, `layout` for the planner.
"""
