"""Facts and state of this machine: its cores and devices, its load, who else uses it, its configuration files.

Read `machine`, then `environment`, then `interference`.
"""
