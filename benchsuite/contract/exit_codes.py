"""Exit codes and what they mean, and the variable that names the results store."""

OK, CRASH, USAGE, SOME_FAILED, NOTHING_RAN, REQUEUE, INTERRUPTED = 0, 1, 2, 3, 4, 75, 130
REGRESSION = 10
STORE_VARIABLE = "BENCHSUITE_STORE"
MEANINGS = {
    OK: "all is well, or nothing was left to do",
    CRASH: "a fault of benchsuite itself",
    USAGE: "usage, configuration, or output that cannot be written, as on a full disk",
    SOME_FAILED: "some trials failed",
    NOTHING_RAN: "nothing could run or be judged",
    REGRESSION: "a regression was found, or a slow node",
    REQUEUE: "stopped early by SIGTERM, SIGHUP, SIGUSR1 or --until, or nodes are lost that trials need, or "
    "the store is no longer there: queue it again",
    INTERRUPTED: "interrupted",
}
