"""What happens within one rank of a trial: set up, feed, step, clock, and leave rank samples behind.

Read `rank`, then `setup`, then `measure`, then `clock`.
"""
