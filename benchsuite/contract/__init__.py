"""Data that several rooms share: what a trial is, what its ranks send, errors, exit codes, YAML.

Every room may import it; it imports no other room. Read `trial_spec`, then `rank_samples`.
"""
