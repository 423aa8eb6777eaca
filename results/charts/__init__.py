"""The charts, and the HTML page that holds them.

Read `chart`, then `page`.
"""
