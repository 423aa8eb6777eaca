"""The planner: every valid layout of a model on a machine, its memory, and its step time.

Read `layout_search`, then `candidates`, then `cost`, then `footprint`; `plan_report` is what people get.
"""
