"""The one model of a training step, and the planner: every valid layout of a model on a machine, its memory, its step.

Read `layout_search`, then `candidates`, then `work` and `step`, then `runnable`; `plan_report` is what people get.
"""
