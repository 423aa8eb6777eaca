"""`probe checkpoint --model`: what a sharded trainer of an LLM writes on many ranks, without its devices.

Read `files`, then `probe`, then `rank`.
"""
