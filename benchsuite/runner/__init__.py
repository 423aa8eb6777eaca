"""Run a plan: claim trials, launch them, resume, keep a deadline, show progress.

This room joins launching, probing and analysis.

Read `sweep`, then `attempt`, then `claims`.
"""
