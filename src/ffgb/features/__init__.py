"""Feature maps that all clients share: pure functions of a seed, settings and aggregated statistics.

No map ever depends on anyone's rows.  What it takes from the data are totals over all clients (core/questions.py); the
function that makes a map asks for them.  Maps compose: one feeds another (`inner`), or several stand side by side
(`Concatenate`).
"""
