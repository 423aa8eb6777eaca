"""What a dataset is: manifest, samples, fields, kinds, shards; and how it is verified.

Read `manifest`, then `sample`, then `kinds`.
"""
