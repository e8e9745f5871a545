"""`python -m ffgb` is `ffgb`."""

from ffgb.cli import main

main()
