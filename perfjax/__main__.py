"""`python -m perfjax` is the command `perfjax`."""

from perfjax.cli import main

if __name__ == "__main__":
    main()
