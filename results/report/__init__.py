"""What is said about results: a sentence first, a table second, a file third."""
