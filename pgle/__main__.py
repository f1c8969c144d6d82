"""``python -m pgle`` is the same program as ``pgle``."""

from pgle.cli.main import main

if __name__ == "__main__":
    main()
