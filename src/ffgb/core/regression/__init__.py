"""Regression as statisticians know it, from totals: formulas, designs, families, and sums over rows."""
