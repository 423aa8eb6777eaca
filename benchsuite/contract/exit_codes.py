"""Exit codes, and the variable that names the results store."""

OK, CRASH, USAGE, SOME_FAILED, NOTHING_RAN, REQUEUE, INTERRUPTED = 0, 1, 2, 3, 4, 75, 130
REGRESSION = 10
STORE_VARIABLE = "BENCHSUITE_STORE"
