"""The GPU that a captured program sees: the program's questions are answered for the target, jax's own for the CPU.

Programs choose kernels, sharding and batch sizes by ``jax.default_backend()``, a device's kind or its memory. A program
that sees a CPU there is another program than the one that runs on GPUs.
"""

import functools
import os
import sys

from pgle_hook import guarded, jax_private, warn

PLATFORM = "gpu"  # as `Device.platform` and `jax.default_backend` call NVIDIA's GPUs
NAMES = (PLATFORM, "cuda")
PLATFORM_VERSION = "PJRT C API\ncuda 12090"  # the form of a CUDA client's; kernels are chosen by the word in it
SETTINGS = ("jax_platforms", "jax_platform_name")
CHOOSES = (os.path.join("cudnn", ""), os.path.join("pallas", ""), "mesh.py")
MESHES = os.path.join("jax", "_src", "mesh_utils.py")
WITH_PLATFORM = ("devices", "local_devices", "device_count", "local_device_count", "get_backend")

CUDNN = 91300
"""The release of cuDNN that is assumed when none is installed: newer than every one that jax 0.12 asks for."""


class Gpu:
    """Answers for a GPU.

    Args:
        jax: the module, freshly imported.
        about: facts about the GPU: ``kind``, ``compute_capability``, ``core_count``, ``memory_bytes`` (of jax's
            allocator), ``topology`` of the job (``SxHxD``: slices, hosts of each, devices of each host).
    """

    def __init__(self, jax, about):
        self._jax = jax
        self._about = about
        self._ranks = {}  # of devices by their ids
        self._own = os.path.join(os.path.dirname(jax.__file__), "_src", "")
        # Parts of jax that choose kernels, and ask as programs do; a mesh tells Pallas its kind of device.
        self._chooses = tuple(os.path.join(self._own, name) for name in CHOOSES)

    def show(self):
        """Have jax answer the program's questions so; each part by itself, since releases differ."""
        guarded(self._stay_on_cpus)
        guarded(self._functions)
        guarded(self._types)
        jax_private.cudnn_imported(lambda module: guarded(lambda: _cudnn(module)))

    def _asks(self, depth=2):
        """Whether the caller is the program, and not jax itself."""
        name = sys._getframe(depth).f_code.co_filename
        return not name.startswith(self._own) or name.startswith(self._chooses)

    def _stay_on_cpus(self):
        """Ignore what the program says of platforms: there are CPUs alone."""
        update = self._jax.config.update
        update(SETTINGS[0], "cpu")
        keep = lambda this, name, value: None if name in SETTINGS else update(name, value)
        type(self._jax.config).update = keep

    def _functions(self):
        bridge = jax_private.backends()
        for name in WITH_PLATFORM:
            ask = getattr(bridge, name)
            new_ask = _without_gpus(ask)
            setattr(bridge, name, new_ask)
            if getattr(self._jax, name, None) is ask:
                setattr(self._jax, name, new_ask)
        default = bridge.default_backend

        @functools.wraps(default)
        def new_default():
            return PLATFORM if self._asks() else default()

        bridge.default_backend = self._jax.default_backend = new_default

    def _types(self):
        """Properties of devices and of their client, whose types are jaxlib's."""
        device, client = jax_private.device_types()
        about, total = self._about, int(self._about["memory_bytes"])
        for kind in (device, client):
            self._property(kind, "platform", PLATFORM)
        self._property(client, "platform_version", PLATFORM_VERSION)
        self._property(device, "device_kind", about["kind"])
        _, hosts, each = (int(part) for part in about["topology"].split("x"))
        device.slice_index = property(lambda this: self._rank(this) // (hosts * each))
        process = device.process_index  # of jax's own meshes: one process a host; the program sees that it is one
        device.process_index = property(
            lambda this: self._rank(this) // each if self._asks_for_mesh() else process.__get__(this)
        )
        device.compute_capability = about["compute_capability"]
        device.core_count = about["core_count"]
        used = dict.fromkeys(("bytes_in_use", "peak_bytes_in_use", "largest_alloc_size", "num_allocs"), 0)
        device.memory_stats = lambda this: dict(used, bytes_limit=total, largest_free_block_bytes=total)

    def _rank(self, device):
        """A device's place among all of the job; their ids have gaps between processes."""
        if device.id not in self._ranks:
            found = jax_private.backends().devices()
            self._ranks = {each.id: rank for rank, each in enumerate(found)}
        return self._ranks[device.id]

    def _asks_for_mesh(self):
        return sys._getframe(2).f_code.co_filename.endswith(MESHES)

    def _property(self, kind, name, value):
        real = getattr(kind, name)
        setattr(kind, name, property(lambda this: value if self._asks() else real.__get__(this)))


def _without_gpus(ask):
    """jax's function with no platform in place of GPUs."""

    @functools.wraps(ask)
    def new_ask(*args, **kwargs):
        args = [_named(value) for value in args]
        return ask(*args, **{name: _named(value) for name, value in kwargs.items()})

    for name in ("cache_clear", "cache_info"):
        if hasattr(ask, name):
            setattr(new_ask, name, getattr(ask, name))
    return new_ask


def _named(platform):
    return None if isinstance(platform, str) and platform in NAMES else platform


def _cudnn(module):
    """Have jax's attention find a cuDNN: the program will not run here, but where its GPUs are."""
    check = module.check_cudnn_version

    def new_check():
        try:
            found = check()
        except Exception:  # no plugin, no library
            found = 0
        if not found:
            warn("no cuDNN is installed here; the program is captured as with cuDNN %d.%d"
                 % (CUDNN // 10000, CUDNN // 100 % 100))  # fmt: skip
        return found or CUDNN

    module.check_cudnn_version = new_check
