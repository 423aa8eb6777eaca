"""A against B: trials of the same points side by side, facts that differ, and slow nodes.

Read `sides`, then `compare`, then `nights`.
"""
