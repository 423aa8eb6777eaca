"""Job scripts for Slurm and PBS, and their submission.

Read `submit`, then `job_script`.
"""
