"""What is known of the running program: versions, devices, memory, compilations, the traced window."""

import json
import os
import platform
import socket
import sys

PACKAGES = ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "numpy")


class Facts:
    """The facts file of one process, ``facts.json`` beside the log, renewed while the program runs.

    Args:
        config: ``facts`` is the path.
        jax: the module; asked for devices only once the program has made them.
    """

    def __init__(self, config, jax):
        self._path = config.get("facts")
        self._jax = jax
        self._written = None
        self.values = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "rank": config.get("rank", 0),
            "executable": sys.executable,
            "versions": {"python": platform.python_version(), **_versions()},
            "compilations": 0,
            "compile_s": 0.0,
        }

    def compiled(self, seconds):
        """Something was compiled."""
        self.values["compilations"] += 1
        self.values["compile_s"] = round(self.values["compile_s"] + seconds, 6)

    def write(self, final=False):
        """Write the file whole. A process that never compiled anything leaves none."""
        if self._path is None or not self.values["compilations"]:
            return
        self.values.update(_devices(self._jax))
        self.values["finished"] = final
        if self._written is None:
            self._written = self._free_path()
        temporary = "%s.%d.tmp" % (self._written, os.getpid())
        with open(temporary, "w") as file:
            json.dump(self.values, file, indent=2)
        os.replace(temporary, self._written)

    def _free_path(self):
        root, suffix = os.path.splitext(self._path)
        return self._path if not os.path.exists(self._path) else "%s.pid%d%s" % (root, os.getpid(), suffix)


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
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is None or not getattr(bridge, "_backends", None):
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
