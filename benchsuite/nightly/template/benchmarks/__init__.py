"""Benchmarks of airspeed velocity (asv)."""
