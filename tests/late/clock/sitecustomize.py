"""Let Python sleep under faketime, whose 0.9.10 shifts the end of clock_nanosleep though monotonic clocks are not."""

import os
import select
import time

if "FAKETIME" in os.environ:
    time.sleep = lambda seconds: select.select([], [], [], seconds)  # type: ignore[assignment]
