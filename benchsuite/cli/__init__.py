"""The verbs, a file for each group: options, a call, and what is printed. Heavy imports are inside functions.

Read `app`, then the file that is named after the verb.
"""
