"""A dataset's copy on a node-local disk, whole or lazily made, checked before it passes for one.

Read `stage`, then `copy`, then `lazy`.
"""
