"""Probes: what a path, a checkpoint or a network gives without a training loop around it.

Read `record` and `ranks`, then `storage`, then `checkpoint`; collectives are in `comm`.
"""
