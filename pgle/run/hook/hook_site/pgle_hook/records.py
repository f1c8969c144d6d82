"""What the hook writes down: step times, and facts about the running program."""

import json
import os
import platform
import socket
import sys

from pgle_hook import jax_private
from pgle_hook.place import free_path

PACKAGES = ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "jax-cuda12-pjrt", "jax-cuda13-pjrt", "numpy")

KEPT_TIMES = 200


class StepWriter:
    """Appends JSON lines to the rank's steps file, which is made with the first step.

    Whole lines at once, so that what a killed program leaves is valid.

    Steps are noted by the program's thread, which then continues at once, and written by the hook's.

    Args:
        place: the files of this rank; with several processes of one rank, later ones get their pid into the name.
    """

    def __init__(self, place):
        self._place = place
        self.path = None
        self._file = None
        self._noted = []

    def note(self, number, seconds, profiled, compiled):
        """One step, to be written soon."""
        self._noted.append((number, seconds, profiled, compiled))

    def take(self):
        """What was noted since the last time; to be called under the lock that `note` is called under."""
        noted, self._noted = self._noted, []
        return noted

    def write(self, noted):
        """Write steps; marks only where they are true."""
        if not noted:
            return
        lines = []
        for number, seconds, profiled, compiled in noted:
            record = {"step": number, "step_time_s": round(seconds, 9)}
            if profiled:
                record["profiled"] = True
            if compiled:
                record["compiled"] = True
            lines.append(json.dumps(record) + "\n")
        if self._file is None:
            self._open()
        os.write(self._file, "".join(lines).encode())

    def _open(self):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.path = self._place.steps
        try:
            self._file = os.open(self.path, flags | os.O_EXCL, 0o644)
        except FileExistsError:
            self.path = free_path(self._place.steps)
            self._file = os.open(self.path, flags, 0o644)


class Facts:
    """The facts file of one process, renewed while the program runs: a killed program leaves the last one.

    Args:
        place: the files of this rank.
        jax: the module; asked for devices only once the program has made them.
    """

    def __init__(self, place, jax):
        self._place = place
        self._jax = jax
        self._path = None
        self.stale = False
        self.values = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "executable": sys.executable,
            "versions": dict(_versions(), python=platform.python_version()),
            "compilations": 0,
            "compile_s": 0.0,
            "compiled_at": [],
            "steps": 0,
        }

    @property
    def is_first(self):
        """Whether something was compiled and the file is not there yet."""
        return self._path is None and self.values["compilations"] > 0

    def compiled(self, seconds, at):
        """Something was compiled, in so many seconds, until `at`; the times of the first ones are kept."""
        self.values["compilations"] += 1
        if self.values["compilations"] <= KEPT_TIMES:
            self.values["compiled_at"].append(round(at, 6))
        self.values["compile_s"] = round(self.values["compile_s"] + seconds, 6)
        self.stale = True

    def set(self, name, value):
        """Note something for the next writing."""
        self.values[name] = value
        self.stale = True

    def write(self, final=False):
        """Write the file whole. A process that never compiled anything leaves none."""
        self.stale = False
        if not self.values["compilations"]:
            return
        self.values.update(_devices(self._jax), rank=self._place.rank)
        self.values["finished"] = final
        if self._path is None:
            self._path = free_path(self._place.facts)
        temporary = "%s.%d.tmp" % (self._path, os.getpid())
        with open(temporary, "w") as file:
            json.dump(self.values, file, indent=2)
        os.replace(temporary, self._path)


def _versions():
    from importlib import metadata

    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _devices(jax):
    """Devices and their memory peaks; only where the program has set its backend up (asking would do it)."""
    if not jax_private.has_backends():
        return {}
    devices = jax.local_devices()
    peaks = {}
    for device in devices:
        stats = device.memory_stats() or {}
        if "peak_bytes_in_use" in stats:
            peaks[str(device.id)] = stats["peak_bytes_in_use"]
    return {
        "platform": devices[0].platform,
        "device_kind": devices[0].device_kind,
        "local_devices": len(devices),
        "devices": jax.device_count(),
        "process_index": jax.process_index(),
        "process_count": jax.process_count(),
        "peak_memory_bytes": peaks,
    }
