"""Data that several rooms share: what a trial is, what its ranks send, errors, exit codes, YAML.

Every room may import it. It imports no other room of `benchsuite`, only what storage, workloads and results
show. Read `trial_spec`, then `rank_samples`.
"""
