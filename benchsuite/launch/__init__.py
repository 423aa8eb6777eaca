"""From a placement and a command to the processes of a trial: agents on nodes, which fork ranks and watch them.

What ranks run is started by its name. Read `launcher`, then `agents`, then `zygote`, then `placement`.
"""
