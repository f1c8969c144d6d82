"""The hook's files for its rank: step times, and facts about the running program."""

import functools
import hashlib
import json
import os
import platform
import re
import socket
import sys
import threading
import traceback
from collections import deque
from contextlib import suppress

from pgle_hook import jax_private

XLA_FLAGS = "XLA_FLAGS"
_IR = "JAX_DUMP_IR_TO"
_IN_PACKAGES = re.compile("-packages|pgle_hook")
_DUMP = r"--xla_dump_to=[\"']?%s(?=[\"'\s]|$)"


class HookFiles:
    """The files of this process's rank, each an attribute: facts, steps, hlo, ir, trace, seen,
    claim, log.

    `pgle profile -- srun python train.py` starts one launcher for many ranks. Each hook then finds
    its own rank in its environment. If a script passes the rank as an argument, the hook learns it
    when the program gives it to jax (`join`).

    Args:
        config: from the launcher: ``rank`` of the launcher; ``launchers``, pairs of variables that
            hold rank and size, none where every rank has a launcher of its own; ``folder`` of the
            stage; ``names`` of a rank's files in it, with places for its ``label`` and a suffix
            that holds it, except for rank 0; ``packages`` whose versions are noted.
        environ: of this process.
    """

    def __init__(self, config, environ):
        self._config = config
        self.packages = config["packages"]
        self._own = _own_rank(config["launchers"], environ)
        self._be(config["rank"] if self._own is None else self._own)

    def _be(self, rank):
        self.rank = rank
        for name, path in self._paths(rank).items():
            setattr(self, name, path)

    def _paths(self, rank):
        """The paths of a rank by name."""
        label = self._config["label"].format(rank)
        words = {"label": label, "suffix": ".%s" % label if rank else ""}
        found = {}
        for name, text in self._config["names"].items():
            found[name] = os.path.join(self._config["folder"], text.format(**words))
        return found

    def join(self, process_of):
        """Take the rank that the program gave to jax, as (number, of how many), if no variable gave
        one. Return whether it differs.
        """
        if self._own is not None or not self._config["launchers"]:
            return False
        number, count = process_of()
        if not 0 <= number < count or number == self.rank:
            return False
        self._be(number)
        return True

    def own_dump(self, flags):
        """Return XLA_FLAGS with this rank's dump folder instead of the launcher's, because ranks
        would overwrite each other's files.
        """
        shared = self._paths(self._config["rank"])["hlo"]
        in_own = lambda found: found.group().replace(shared, self.hlo)
        return re.sub(_DUMP % re.escape(shared), in_own, flags)

    def separate(self, environ):
        """If one launcher started many ranks: XLA dumps into a folder for each rank, and jax dumps
        only on rank 0.
        """
        if self.rank == self._config["rank"]:
            return
        if XLA_FLAGS in environ:
            environ[XLA_FLAGS] = self.own_dump(environ[XLA_FLAGS])
        if environ.get(_IR) == self.ir:
            del environ[_IR]


def _own_rank(launchers, environ):
    """The rank of this process, by the first launcher whose variables are set; None without one."""
    for rank_name, size_name in launchers:
        try:
            rank = int(environ[rank_name])
            size = int(environ[size_name])
        except (KeyError, ValueError):
            continue
        # An interactive `srun --pty` is one step in which mpirun starts more.
        if 0 <= rank < size > 1:
            return rank
    return None


def describe(error):
    """Describe an exception in a line: ``KeyError: 'flops' (train.py, line 41)``. The line is the
    last one outside of packages.
    """
    text = " ".join(("%s: %s" % (type(error).__name__, error)).split())[:300]
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _IN_PACKAGES.search(frame.filename)]
    if not frames:
        return text
    frame = (own or frames)[-1]
    return "%s (%s, line %d)" % (text, os.path.basename(frame.filename), frame.lineno)


def free_path(path):
    """Return the path, or one with the pid in its name if another process of this rank uses it."""
    if not os.path.exists(path):
        return path
    root, suffix = os.path.splitext(path)
    return "%s.pid%d%s" % (root, os.getpid(), suffix)


_BLANKS = " \t\r\n"
_ONE_FLAG = re.compile(
    r"""(-[A-Za-z0-9_-]*)(?:="(?:\\.|[^"])*"?|='[^']*'?|[^ \t\r\n]*)[ \t\r\n]*""",
    re.DOTALL,
)


def names_of(text):
    """The names of flags, with dashes, that XLA reads from a text that begins with a flag."""
    found = set()
    match = _ONE_FLAG.match(text)
    while match:
        found.add(match.group(1))
        match = _ONE_FLAG.match(text, match.end())
    return found


def restore_flags(ours, environ=os.environ):
    """If the program replaces XLA_FLAGS, add pgle's missing flags in front, so that the program's
    own win. Add none if it names a file.
    """
    text = environ.get(XLA_FLAGS, "").strip(_BLANKS)
    if text and not text.startswith("-"):
        return
    there = names_of(text)
    lost = [flag for flag in ours if flag.split("=", 1)[0] not in there]
    if lost:
        environ[XLA_FLAGS] = " ".join([*lost, environ.get(XLA_FLAGS, "")]).strip()


def write_json(path, value, indent=None):
    """Write JSON, whole or not at all."""
    write_whole(path, lambda file: json.dump(value, file, indent=indent))


def write_whole(path, write):
    """Write a file whole or not at all. On a full disk the old file stays, and no partial one.

    Args:
        write: called with the open file.
    """
    # ranks in containers may have equal pids, and write the same file
    temporary = "%s.%s.tmp" % (path, os.urandom(4).hex())
    try:
        with open(temporary, "w") as file:
            write(file)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.remove(temporary)
        raise


LIBRARY = os.path.dirname(os.path.abspath(os.__file__))
INSTALLED = ("site-packages", "dist-packages")
PIECE = 1 << 20  # bytes of a file read at a time


def packages_of(path):
    """The folder that a file's package is installed in; empty if the file is not installed. Tools
    install into ``site-packages``, or with their notes into any folder that Python searches
    (``pip install --target``).
    """
    parts = path.split(os.sep)
    found = [at for at, part in enumerate(parts) if part in INSTALLED]
    if found:
        return os.sep.join(parts[: found[-1] + 1])
    for folder in sys.path[1:]:  # the first is the program's own folder
        folder = os.path.abspath(folder)
        if path.startswith(folder + os.sep) and _holds_packages(folder):
            return folder
    return ""


@functools.cache
def _holds_packages(folder):
    with suppress(OSError):
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    return False


def is_own(path):
    """Whether a code file is the program's: not installed, not Python's own, and not made at run
    time (``<string>``).
    """
    if path.startswith("<") or packages_of(os.path.abspath(path)):
        return False
    return not os.path.abspath(path).startswith(LIBRARY + os.sep)


class Sources:
    """The files that the program's modules were imported from, below its working directory or its
    script's folder.

    Each is read once, soon after its import. Modules of a zip, and packages without a file, are
    left out.
    """

    def __init__(self):
        self._folder = os.path.realpath(os.getcwd())
        self._digests = {}  # by path: SHA-256 of the content
        self._known = 0  # number of modules at the last look
        self._seen = set()  # their names

    def is_behind(self):
        """Whether modules have been imported since the last look."""
        return len(sys.modules) != self._known

    def found(self):
        """Return digests by absolute path."""
        if self.is_behind():
            self._known = len(sys.modules)
            folders = (self._folder, self._script_folder())
            # another thread may import while the items are listed
            for name, module in sys.modules.copy().items():
                if name not in self._seen:
                    self._seen.add(name)
                    self._look(module, folders)
        return dict(self._digests)

    def _script_folder(self):
        path = getattr(sys.modules.get("__main__"), "__file__", None)
        folder = os.path.dirname(os.path.realpath(path)) if path else self._folder
        return folder if is_own(os.path.join(folder, "")) else self._folder

    def _look(self, module, folders):
        """Record the digest of a module's file, if it is the program's own."""
        path = getattr(module, "__file__", None)
        if not isinstance(path, str):
            return
        path = os.path.realpath(path)
        below = tuple(os.path.join(folder, "") for folder in folders)
        is_wanted = path.startswith(below) and is_own(path) and _HERE not in path
        if not is_wanted or not os.path.isfile(path):
            return
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            for piece in iter(lambda: file.read(PIECE), b""):
                digest.update(piece)
        self._digests[path] = digest.hexdigest()


_HERE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")

KEPT_TIMES = 200


class StepWriter:
    """Appends JSON lines to the rank's steps file.

    Whole lines are written, so a killed program leaves a valid file. The program's thread only
    records steps, and the hook's thread writes them. If a rank has several processes, the file
    names of later ones contain their pid.
    """

    def __init__(self, files):
        self._files = files
        self.path = None
        self._file = None
        self._noted = deque()
        self._lock = threading.Lock()

    def note(self, number, seconds, profiled, compiled):
        """Record one step, to be written soon. Marks are written only if they are true."""
        step = {"step": number, "step_time_s": round(seconds, 9)}
        if profiled:
            step["profiled"] = True
        if compiled:
            step["compiled"] = True
        self._noted.append(step)

    def write(self):
        """Write the recorded steps."""
        with self._lock:
            lines = []
            while self._noted:
                lines.append(json.dumps(self._noted.popleft()) + "\n")
            if not lines:
                return
            if self._file is None:
                self._open()
            os.write(self._file, "".join(lines).encode())

    def _open(self):
        """Open the rank's file, or one with the pid in its name if another process has it."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.path = self._files.steps
        try:
            self._file = os.open(self.path, flags | os.O_EXCL, 0o644)
        except FileExistsError:
            self.path = free_path(self._files.steps)
            self._file = os.open(self.path, flags, 0o644)


class Facts:
    """The facts file of one process. It is rewritten while the program runs, so a killed program
    leaves the last version.
    """

    def __init__(self, files, jax):
        self._files = files
        self._jax = jax
        self._path = None
        self.stale = False
        versions = _versions(files.packages)
        versions["python"] = platform.python_version()
        self.values = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "executable": sys.executable,
            "versions": versions,
            "compilations": 0,
            "compile_s": 0.0,
            "compiled_at": [],
            "steps": 0,
        }
        self._sources = Sources()

    def compiled(self, seconds, at):
        """Record a compilation of so many seconds that ended at `at`; the times of the first ones
        are kept.
        """
        self.values["compilations"] += 1
        if self.values["compilations"] <= KEPT_TIMES:
            self.values["compiled_at"].append(round(at, 6))
        self.set("compile_s", round(self.values["compile_s"] + seconds, 6))

    def set(self, name, value):
        """Set a fact for the next writing."""
        self.values[name] = value
        self.stale = True

    def is_due(self):
        """Whether facts have changed since the file was written."""
        return self.stale or self._sources.is_behind()

    def write(self, final=False):
        """Write the whole file. A process that compiled nothing writes none."""
        if not self.values["compilations"]:
            return
        self.stale = False
        if jax_private.has_backends():  # asking for devices would set a backend up
            self.values.update(_devices(self._jax))
        self.values.update(rank=self._files.rank, finished=final)
        self.values["sources"] = self._sources.found()
        if self._path is None:
            self._path = free_path(self._files.facts)
        write_json(self._path, self.values, indent=2)


def _versions(packages):
    """The versions of the packages that are installed, by name."""
    # Every Python process that starts with the hook pays for this import, but only those with jax
    # need it.
    from importlib import metadata

    found = {}
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _devices(jax):
    """Facts about the devices of the job, by name."""
    devices = jax.local_devices()
    return {
        "platform": devices[0].platform,
        "device_kind": devices[0].device_kind,
        "local_devices": len(devices),
        "devices": jax.device_count(),
        "process_index": jax.process_index(),
        "process_count": jax.process_count(),
    }
