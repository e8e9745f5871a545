"""How numbers of single clients are kept to their total: sums as integers."""
