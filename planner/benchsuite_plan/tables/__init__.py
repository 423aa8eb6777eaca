"""Tables of measured layouts: one model fitted to all rows, and each layout predicted at more ranks.

Read `table_input`, then `configurations`, then `layout_fit`, then `table_layouts`.
"""
