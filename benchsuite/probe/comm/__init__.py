"""Collectives measured: checked by content, timed in blocks, recorded with the bandwidths of nccl-tests.

Read `request`, then `rank`, then `collectives`, then `records`.
"""
