"""Nights of a site: a results repository, a night in it, and what airspeed velocity (asv) shows of them.

Read `init` and `night`, then `measuring` and `asv_classes`, which asv runs. `template` is what a new repository begins
with, `pages` what asv's pages would load from the internet.
"""
