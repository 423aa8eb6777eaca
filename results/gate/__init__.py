"""The nightly gate: which nights are the baseline, and whether the newest is worse.

Read `baseline`, then `halved`, which needs no history, then `noise` and `alarms`, which learn from it.
"""
