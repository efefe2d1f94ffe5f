"""`python -m kinrank` is the command line."""

from kinrank.cli import main

main()
