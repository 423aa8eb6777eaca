"""Records for other programs: figures and samples in their formats."""
