"""Tables and words for terminals and papers. Every table that is printed comes from here.

Read `tables`, then `terminal`; `words` has what sentences and cells share.
"""
