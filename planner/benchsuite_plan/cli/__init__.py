"""What is typed: `benchsuite plan` and, below it, `list`, `schema` and `table`.

Read `app`, then `plan`; `schedule` draws a pipeline, `table` fits measured layouts, `reference` lists and describes.
"""
