"""The command `perfjax`, from its first moment: what is wrong while the library is imported is one line, too.

A module of its own, because `perfjax` imports all of itself, JAX included, which takes seconds.
"""

import os
import signal
import sys

__all__ = ["command"]


def command() -> None:
    """Entry point of the command `perfjax`: import it and run it; Ctrl-C is heard from the start."""
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where the shell has it ignored
    if heard:
        # An exception could be lost in what runs during an import, or be shown with all its calls.
        signal.signal(signal.SIGINT, _stop)
    try:
        from perfjax.cli import command as run
    except (ValueError, RuntimeError) as error:  # as of JAX about a variable such as JAX_ENABLE_X64
        print(f"perfjax: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    if heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _stop(*_) -> None:
    os.write(2, b"perfjax: stopped.\n")
    os._exit(130)
