"""Run a plan: claim trials, launch them, resume, keep a deadline, show progress. The only room that composes others.

Read `sweep`, then `attempt`, then `claims`.
"""
