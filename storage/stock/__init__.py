"""Reading as each format's own library tells its users to, to be compared with what they run.

Nothing here is fast reading of ours. Read `reader` for what such a reader is, then any format.
"""
