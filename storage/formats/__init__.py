"""A file for each data format.

Read `files`, then `tar`; the protocol is in `dataset.manifest`.
"""
