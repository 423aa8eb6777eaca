"""What holds a training back: a verdict, its cause, the numbers that show it, and what helps.

Read `verdict`, then `judge`, then `lost_time`. Nothing here says it in words: `benchsuite.results.render.judged` does.
"""
