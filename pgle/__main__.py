"""The program ``pgle``, also as ``python -m pgle``. From the first import on, Ctrl-C ends it with
one line.
"""

import os
import signal


def _interrupted(number: int, frame: object) -> None:
    os.write(2, b"pgle: interrupted\n")
    os._exit(130)


def main() -> None:
    """Import the command line, then run it."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    from pgle.cli.main import main

    signal.signal(signal.SIGINT, usual)
    main()


if __name__ == "__main__":
    main()
