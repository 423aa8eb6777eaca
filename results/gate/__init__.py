"""The nightly gate: which nights are the baseline, and whether the newest is worse.

Read `baseline`, then `noise`, then `alarms`.
"""
