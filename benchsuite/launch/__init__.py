"""From a placement and a command to the processes of a trial: agents on nodes, which fork ranks and watch them.

What ranks run is started by its name. `zygote` opens the port at which ranks meet and sees when one of them dies;
`rendezvous` is where agents of other nodes meet. Read `launcher`, then `agents`, then `zygote`, then `placement`.
"""
