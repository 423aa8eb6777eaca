"""What a path gives without any loader: reads by pattern, block size and depth, and metadata operations.

Read `probe`, then `plain_reader`.
"""
