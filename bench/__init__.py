"""What benchsuite itself costs, measured side by side with the plainest alternative: `make bench`."""

import os
import sys

# As where a user installed it: else each process that a benchmark starts compiles the product anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
