"""What the threads of a training are at while it runs, for watched loops and for trials.

Read `looks`, then `frames`, then `readers`, then `counted`. It sees and counts; `analysis` judges.
"""
