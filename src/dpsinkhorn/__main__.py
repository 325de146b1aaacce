"""`python -m dpsinkhorn`: the command line."""

from dpsinkhorn.cli import main

if __name__ == "__main__":
    main()
