"""A training loop of anyone's own, watched from its iterator: `for batch in benchsuite.watch(loader)`.

Read `watch`, then `loop`, then `rank_loop`, then `figures` and `verdict`.
"""
