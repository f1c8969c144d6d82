"""Where the hook of one process writes: the same names as `pgle.run.real_files` gives to the launcher's side."""

import os


class Place:
    """The files of this process's rank.

    `pgle profile -- srun python train.py` starts one launcher for many ranks: each hook then finds its own rank.

    Args:
        config: ``folder`` of the stage; ``rank`` and ``ranks`` of the launcher; ``launchers``, pairs of variables that
            hold rank and size.
        environ: of this process.
    """

    def __init__(self, config, environ):
        self.folder = config["folder"]
        self.rank = config.get("rank", 0)
        self.control = os.path.join(self.folder, ".control" + _suffix(self.rank))
        if config.get("ranks", 1) == 1:
            self.rank = _own_rank(config.get("launchers", ()), environ)
        suffix = _suffix(self.rank)
        self.seen = os.path.join(self.folder, ".hook%s.seen" % suffix)
        self.steps = os.path.join(self.folder, "steps%s.jsonl" % suffix)
        self.facts = os.path.join(self.folder, "facts%s.json" % suffix)
        self.trace = os.path.join(self.folder, "trace", "rank%04d" % self.rank)


def _suffix(rank):
    return "" if rank == 0 else ".rank%04d" % rank


def _own_rank(launchers, environ):
    for rank_name, size_name in launchers:
        try:
            rank, size = int(environ[rank_name]), int(environ[size_name])
        except (KeyError, ValueError):
            continue
        if 0 <= rank < size:
            return rank
    return 0


def beside(path):
    """The path, or one with the pid in its name where another process of this rank has taken it."""
    if not os.path.exists(path):
        return path
    root, suffix = os.path.splitext(path)
    return "%s.pid%d%s" % (root, os.getpid(), suffix)
