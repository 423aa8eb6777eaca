"""Make datasets: generated, or converted from what users have.

Read `convert`, then `parallel`.
"""
