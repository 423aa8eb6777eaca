"""The planner: the layouts of a model on a machine that nobody needs to own, and tables of measured layouts.

Read `theory` for a formula, `layout` for the search, `tables` for fits to measured layouts; `verb` is what
`benchsuite plan` prints.
"""
