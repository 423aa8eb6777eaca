"""What was really read: traces of calls, counters of the kernel, the page cache, file systems.

Read `io_trace`, then `io_profile`, then `counters`.
"""
