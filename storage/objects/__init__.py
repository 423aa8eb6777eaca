"""Objects of S3-compatible stores: their names as paths, and the one client that asks for them.

Read `path`, then `client`.
"""
