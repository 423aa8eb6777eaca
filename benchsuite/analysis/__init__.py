"""From rank samples to figures, to one verdict, to a record. Nothing here imports torch.

Read `metrics`, then `judging`, then `caveats`, then `record_builder`.
"""
