"""A program that is captured on CPUs: which modules it executes, what jax drops there, what is too large to execute."""


def watch(files):
    """Capture the modules of this process.

    Args:
        files: by what the hook writes in it, the path of a file.
    """
    from pgle_hook import guarded
    from pgle_hook.capture import offload
    from pgle_hook.capture.executed import Executed
    from pgle_hook.capture.uncomputed import Uncomputed

    results = Uncomputed(files["uncomputed"]).results if "uncomputed" in files else lambda call, execute: execute()
    guarded(lambda: Executed(files["program"]).watch(results))
    offload.watch(files["lowered"])
