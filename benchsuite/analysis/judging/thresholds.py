"""From where on a number says something: each threshold of judging, and why it lies there."""

HELD_BACK_AU = 0.95
"""The utilization from which on the input keeps up: AU tops out near it on CPU machines."""
MOSTLY_KEPT_UP_AU = 0.90
"""Between it and HELD_BACK_AU the computation takes the most of the step and the input some: mixed."""
MAIN_SHARE = 0.65
"""A cause with this share of the readers' time is the cause; between the two it is mixed."""
COMMUNICATION_SHARE = 0.20
"""Exposed communication, or a pipeline's bubble, above this share of the step is what holds the job back."""
SATURATED_SHARE = 0.80
"""Storage that gives this share of what it gave a plain reader has no more to give."""
FULL_THREAD = 0.90
"""A thread of a bucket's client that computes this share of the time fills its core: ticks are 10 ms."""
CROWDED_SHARE = 0.25
"""A loop that waits for a core for more of the step than this has more threads than cores."""
SPARED_CORE = 0.25
"""Readers that keep no more than this of a core busy leave it to the threads that compute."""
CONTENTION_SHARE = 0.10
"""Where the training thread waits for a core this share of the step, cores are short for the readers beside it too."""
FULL_SHARE = 0.90
"""Where so much of the cores is used, readers that want one have to wait for it."""
MAX_OVERHEAD = 0.1
"""Measuring that takes more of the step than this hides what the step itself does."""
MAX_SHARE = 1.005
"""The kernel's counters of other processes are a tick behind: a worker that never rests is busy for up to so much,
which is printed as 100 %."""
OTHERS_SHARE = 0.20
"""Others who read so much of what a disk gives may be why its readers wait."""
MIN_STEPS = 20
"""Of fewer counted steps of a watched loop nothing is told."""
NAMED_STEPS = 30
"""Of fewer counted steps of a watched loop no cause is named: a wait of one step in twenty comes once or not at all."""
QUEUED_SHARE = 0.30
"""Readers that wait for a core for this share of the time that they want one lack cores."""
SEEN_BUSY = 0.05
"""Of readers that are seen to want a core for less of the time than this, others do the work, which are not seen."""
QUOTA_SHARE = 0.25
"""A quota that is used up in this share of its periods holds back what it is for."""
IDLE_CORES = 0.5
"""Who waits for a core while so much of another one is idle may not use it."""
MEMORY_SHARE = 0.25
"""Where processes wait for memory for this share of the time, the training is among them."""
REFILL_CAUSE = 0.5
"""Where the first batches of passes take this share of the waiting for input, it is the beginning that takes long."""
SHUFFLING_SHARE = 0.25
"""Workers that are seen within a shuffle for this share of their looks, while passes begin, fill its buffer."""
ENDED_SHARE = 0.4
"""Workers that have nothing more to read for this share of their looks, while the loop waits, have no shard: if each
had one, the loop would wait for hardly more than half as long."""
AMPLIFIED = 4.0
"""Bytes read over bytes handed on: above it most of what is read is of no use. Pictures decode to more, not to less."""
READ_IN_PIECES = frozenset(
    {"h5py", "nibabel", "netCDF4", "numpy", "pyarrow", "tables", "tensorstore", "torch", "xarray", "zarr"}
)
"""Libraries that fetch a whole piece of a file, or all of it, for a part: chunks of HDF5 and Zarr, row groups of
Parquet, arrays that are loaded for one slice. None of them makes images smaller, as those for pictures do."""
STARVED_SHARE = 0.75
"""A loop that waits for so much of the time leaves its readers no rest: they compute then as much as at any time."""
MANY_TENSORS = 32
"""Each tensor of a worker's batch is a file of its own in shared memory, and a message: so many cost more than their
bytes do."""
KERNEL_BESIDE = 0.25
"""Computing on samples takes the kernel up to so much of its own time, for memory mostly; more is for its calls."""
KERNEL_WAITS = 0.1
"""Readers that are seen to wait for files this share of the time use the kernel for them."""
SWAPPED_SHARE = 0.5
"""Where so much of what was read was swapped in, pages that are waited for are memory's, not files'."""
MANY_HIDDEN = 0.2
"""From this share on, looks at which the kernel shows nothing are why a cause is not known."""
LOCK_SHARE = 0.3
"""Of two readers that take turns at a lock each waits for half of the time; less than this of it is no queue."""
FEWER_BATCHES = 0.10
"""A rank with this share of steps fewer than another has fewer batches; a step or two are those in flight."""
SLOWER_RANK = 1.3
"""A rank whose own part of a step takes so much longer than another's is the one that is waited for."""
SLOWER_CLOCK = 0.95
"""A clock that gives less than this share of another's: those of equal parts differ by a few percent."""
USUAL_PART = 0.25
"""A rank that takes longer by so much of what is usual for it holds the others back in a step."""
LONGER_PART = 0.05
"""A part that takes a rank so much of the step longer than others is why these wait for it; less is noise."""
LEAST_LOOKS = 10
"""Shares of fewer looks are chance: of ten, seven are of one kind where it takes half of the time once in six times."""
LONG_STEP = 3.0
"""A step that takes so many times the median is a long one; times of equal steps hardly differ by that."""
RARELY = 0.2
"""Long steps are told apart where they are at most so many of all: more of them are what steps are like."""
LONG_STEPS_SHARE = 0.10
"""Long steps that take more than this of the time, beyond what other steps take, are told."""
TOLD_LINE = 0.1
"""A line that takes less of what it is part of is not where the time goes."""
SURE_LOOKS = 2.0
"""Where a step is seen so often at a line, no step that comes to that line goes unseen."""
FITTING_MODEL = 0.15
"""A model of the pipeline that gives another step than was measured, by more than this, promises nothing."""
MIN_GAIN = 0.05
"""What a remedy is to gain at least: less is hardly measured, and is not worth the change."""
MOST_WORKERS = 32
"""Loader workers of one rank that are advised at most: each is a process with the dataset in its memory."""
