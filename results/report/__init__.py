"""What is said about results: a sentence first, a table second, a file third.

Read `summary`, then `sections`, then `markdown`.
"""
