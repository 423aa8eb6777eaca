"""The results store: records in append-only segments, compacted to Parquet, read as one table.

Read `record`, then `store`, then `query`.
"""
