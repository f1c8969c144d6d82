"""Where the hook of one process writes: the same names as `pgle.run.launch.files` gives to the launcher's side."""

import os
import re

_HLO = r"--xla_dump_to=[\"']?%s(?=[\"'\s]|$)"
_IR = "JAX_DUMP_IR_TO"


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
        self._shared = self.rank != config.get("rank", 0)

    def own_dump(self, flags):
        """XLA_FLAGS with this rank's folder for XLA's dumps in place of the launcher's: ranks that share one write into
        each other's files."""
        if not self._shared:
            return flags
        shared = re.escape(os.path.join(self.folder, "hlo"))
        return re.sub(_HLO % shared, lambda found: found.group() + _suffix(self.rank), flags)

    def keep_apart(self, environ):
        """Where one launcher started many ranks: XLA dumps into a folder of each rank, jax only on rank 0."""
        if not self._shared:
            return
        if "XLA_FLAGS" in environ:
            environ["XLA_FLAGS"] = self.own_dump(environ["XLA_FLAGS"])
        if environ.get(_IR) == os.path.join(self.folder, "ir"):
            del environ[_IR]


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
