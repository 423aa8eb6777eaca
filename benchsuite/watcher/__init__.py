"""A training loop of anyone's own, watched from its iterator: `for batch in benchsuite.watch(loader)`.

Read `watch`, then `loop`, then `ranks`, then `answer`. Figures and verdict are those of `analysis`.
"""
