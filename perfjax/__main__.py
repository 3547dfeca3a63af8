"""`python -m perfjax` is the command `perfjax`."""

from perfjax.cli import command

if __name__ == "__main__":
    command()
