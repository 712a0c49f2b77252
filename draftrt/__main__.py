"""Runs the command line as ``python -m draftrt``, also from a checkout that was never installed."""

from draftrt.cli import main

if __name__ == "__main__":
    main()
