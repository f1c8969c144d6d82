"""First on PYTHONPATH under `pgle profile` and `pgle perf`: start the hook, then run the
sitecustomize that this file hides.
"""

import os
import sys


def _chain():
    """Run the sitecustomize that would have run without this folder."""
    import importlib.machinery
    import importlib.util

    here = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _start():
    if not os.environ.get("PGLE_HOOK"):
        return
    try:
        import pgle_hook

        pgle_hook.install(os.environ["PGLE_HOOK"])
    except Exception as error:  # never break the program
        sys.stderr.write(
            "pgle: warning: the capture hook did not start (%s: %s)\n"
            % (type(error).__name__, error)
        )


_start()
_chain()
