"""What benchsuite itself costs, measured side by side with the plainest alternative: `make bench`."""
