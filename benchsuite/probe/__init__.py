"""Probes: what a path, a checkpoint or a network gives without a training loop around it.

Read `record`, then `storage_report`, then `checkpoint`; collectives are in `comm`.
"""
