"""Run a plan: claim trials, launch them, resume, keep a deadline, show progress.

It joins probing, launching and analysis.

Read `sweep`, then `attempt`, then `claims`.
"""
