"""The hook's place in the job: its rank, where it writes, and the environment that the program gets from pgle."""

import os
import re

XLA_FLAGS = "XLA_FLAGS"
_IR = "JAX_DUMP_IR_TO"
_DUMP = r"--xla_dump_to=[\"']?%s(?=[\"'\s]|$)"


class Place:
    """The files of this process's rank, each an attribute: facts, steps, hlo, ir, trace, seen, control, claim.

    `pgle profile -- srun python train.py` starts one launcher for many ranks: each hook then finds its own rank, in its
    environment or, where a script gives it in words, once the program has given it to jax (`join`).

    Args:
        config: from the launcher: ``rank`` of the launcher; ``launchers``, pairs of variables that hold rank and size,
            none where every rank has a launcher of its own; ``paths``.
        environ: of this process.
    """

    def __init__(self, config, environ):
        self._config = config
        self._launchers = _paths(config["paths"], config["rank"])
        self._told = _own_rank(config["launchers"], environ)
        self._be(config["rank"] if self._told is None else self._told)

    def _be(self, rank):
        self.rank = rank
        for name, path in _paths(self._config["paths"], rank).items():
            setattr(self, name, path)
        self.control = self._launchers["control"]
        self._is_shared = rank != self._config["rank"]

    def join(self, process_of):
        """Take the rank that the program gave to jax, if no variable gave one; returns whether it is another.

        Args:
            process_of: the number of this process and of how many; asked only where it counts.
        """
        if self._told is not None or not self._config["launchers"]:
            return False
        number, count = process_of()
        if not 0 <= number < count or number == self.rank:
            return False
        self._be(number)
        return True

    def own_dump(self, flags):
        """XLA_FLAGS with this rank's folder for XLA's dumps in place of the launcher's: ranks that share one write into
        each other's files."""
        if not self._is_shared:
            return flags
        shared = self._launchers["hlo"]
        return re.sub(_DUMP % re.escape(shared), lambda found: found.group().replace(shared, self.hlo), flags)

    def separate(self, environ):
        """Where one launcher started many ranks: XLA dumps into a folder of each rank, jax only on rank 0."""
        if not self._is_shared:
            return
        if XLA_FLAGS in environ:
            environ[XLA_FLAGS] = self.own_dump(environ[XLA_FLAGS])
        if environ.get(_IR) == self.ir:
            del environ[_IR]


def _paths(paths, rank):
    """The paths of a rank by name; except for rank 0 they hold a placeholder for its label."""
    if rank == 0:
        return paths["rank_0"]
    label = paths["label"].format(rank)
    return {name: path.replace(paths["any_rank"], label) for name, path in paths["others"].items()}


def _own_rank(launchers, environ):
    for rank_name, size_name in launchers:
        try:
            rank, size = int(environ[rank_name]), int(environ[size_name])
        except (KeyError, ValueError):
            continue
        if 0 <= rank < size > 1:  # an interactive `srun --pty` is a step of one, in which mpirun starts more
            return rank
    return None


def free_path(path):
    """The path, or one with the pid in its name where another process of this rank has taken it."""
    if not os.path.exists(path):
        return path
    root, suffix = os.path.splitext(path)
    return "%s.pid%d%s" % (root, os.getpid(), suffix)


def restore_flags(ours, environ=os.environ):
    """Where the program replaces XLA_FLAGS: add our missing flags in front, so that the program's own win;
    returns them, none where it names a file."""
    text = environ.get(XLA_FLAGS, "").strip()
    if text and not text.startswith("-"):
        return []
    there = {word.split("=", 1)[0] for word in text.split()}
    lost = [flag for flag in ours if flag.split("=", 1)[0] not in there]
    if lost:
        environ[XLA_FLAGS] = " ".join([*lost, environ.get(XLA_FLAGS, "")]).strip()
    return lost
