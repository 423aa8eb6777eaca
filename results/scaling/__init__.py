"""Strong and weak scaling: series, efficiencies, laws, the knee of the shared storage, and when staging pays.

Read `series`, then `efficiency`.
"""
