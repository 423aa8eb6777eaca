"""What airspeed velocity (asv) runs every night: one sweep, tracked by commit. See asv.conf.json.

Read `measuring`, then `sweeps`.
"""
