"""What asv tracks: a class for each sweep, workload and parallelism, of the sweeps beside this folder."""

from pathlib import Path

from benchsuite.nightly.asv_classes import classes

globals().update(classes(Path(__file__).parent))
