"""From measured series to more ranks than were measured.

Read `from_store`, then `series`, then `outlook`.
"""
