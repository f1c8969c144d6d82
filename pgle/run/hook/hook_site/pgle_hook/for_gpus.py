"""Make a program on CPUs the same as on GPUs: the devices that it sees, and how jax lowers it.

Programs choose kernels, sharding and batch sizes by ``jax.default_backend()``, a device's kind or
its memory. So the program's questions are answered for the target, and jax's own questions for the
CPU.

Code for CPUs differs: random bits are loops there, moves to host memory are dropped, cuDNN's
attention and kernels of Pallas have no rule at all. So every program is lowered for CUDA, and that
is dumped. If the program is executed, it is also lowered for CPUs. Instead of a large one, a module
that returns zeros is compiled.

Operations may say by callbacks how they are partitioned (``custom_partitioning``: attention by
cuDNN, Transformer Engine). XLA partitions such programs here, in the program's own process, where
the callbacks are: a forked child compiles the module without a GPU, and is ended as soon as XLA has
dumped the partitioned module.
"""

import functools
import glob
import os
import shutil
import signal
import sys
import time
import warnings
from types import SimpleNamespace

from pgle_hook import SetAside, guarded, jax_private, warn

# the name of GPUs of all vendors in `Device.platform` and `jax.default_backend`
PLATFORM = "gpu"
# form of a client's version; programs choose kernels by the vendor's word in it
PLATFORM_VERSION = "PJRT C API\n%s"
CUDA = "cuda"  # the platform whose GPUs have cuDNN
SETTINGS = ("jax_platforms", "jax_platform_name")
CHOOSES = (os.path.join("cudnn", ""), os.path.join("pallas", ""), "mesh.py")
MESHES = os.path.join("jax", "_src", "mesh_utils.py")
WITH_PLATFORM = (
    "devices",
    "local_devices",
    "device_count",
    "local_device_count",
    "get_backend",
)

# of an allocator's statistics
UNUSED_MEMORY = (
    "bytes_in_use",
    "peak_bytes_in_use",
    "largest_alloc_size",
    "num_allocs",
)

CUDNN = 91300
"""The cuDNN release that is assumed if none is installed. jax 0.12 asks for none that is newer."""


class GpuAnswers:
    """Answers the program's questions about devices for a GPU.

    Args:
        jax: the module, freshly imported.
        about: facts about the GPU: ``platform`` that jax lowers for, ``client_version``,
            ``kind``, ``compute_capability``, ``core_count``, ``memory_bytes`` (of jax's
            allocator), ``topology`` of the job (``SxHxD``: slices, hosts of each, devices of each
            host).
    """

    def __init__(self, jax, about):
        self._jax = jax
        self._about = about
        self._ranks = {}  # ranks of devices by their ids
        self._own = os.path.join(os.path.dirname(jax.__file__), "_src", "")
        # Parts of jax that choose kernels, and ask as programs do. A mesh tells Pallas its kind of
        # device.
        self._chooses = tuple(os.path.join(self._own, name) for name in CHOOSES)

    def show(self):
        """Make jax give these answers. Parts that a release lacks are skipped one by one."""
        guarded(self._stay_on_cpus)
        guarded(self._functions)
        guarded(self._types)
        platform = self._about["platform"]
        jax_private.cudnn_imported(
            lambda module: guarded(lambda: see_cudnn(module, platform))
        )

    def _asks(self, depth=2):
        """Whether the caller is the program, and not jax itself."""
        name = sys._getframe(depth).f_code.co_filename
        return not name.startswith(self._own) or name.startswith(self._chooses)

    def _stay_on_cpus(self):
        """Ignore the platforms that the program asks for, because only CPUs exist."""
        update = self._jax.config.update
        update(SETTINGS[0], "cpu")

        def new_update(this, name, value):
            if name not in SETTINGS:
                update(name, value)

        type(self._jax.config).update = new_update

    def _functions(self):
        """Replace jax's functions that list devices. The default platform is that of GPUs."""
        bridge = jax_private.backends()
        for name in WITH_PLATFORM:
            ask = getattr(bridge, name)
            new_ask = _without_gpus(ask, (PLATFORM, self._about["platform"]))
            setattr(bridge, name, new_ask)
            if getattr(self._jax, name, None) is ask:
                setattr(self._jax, name, new_ask)
        default = bridge.default_backend

        @functools.wraps(default)
        def new_default():
            return PLATFORM if self._asks() else default()

        bridge.default_backend = self._jax.default_backend = new_default

    def _types(self):
        """Properties of devices and of their client, whose types jaxlib defines."""
        device, client = jax_private.device_types()
        about = self._about
        self._property(device, "platform", PLATFORM)
        self._property(client, "platform", PLATFORM)
        version = PLATFORM_VERSION % about["client_version"]
        self._property(client, "platform_version", version)
        self._property(device, "device_kind", about["kind"])
        device.compute_capability = about["compute_capability"]
        device.core_count = about["core_count"]
        self._places(device)
        total = int(about["memory_bytes"])
        unused = dict.fromkeys(UNUSED_MEMORY, 0)
        stats = dict(unused, bytes_limit=total, largest_free_block_bytes=total)
        device.memory_stats = lambda this: dict(stats)

    def _places(self, device):
        """A device's slice, and its process as jax's own meshes see it: one for each host. The
        program sees a single process.
        """
        _, hosts, each = map(int, self._about["topology"].split("x"))
        usual = device.process_index

        def process_index(this):
            if self._asks_for_mesh():
                return self._rank(this) // each
            return usual.__get__(this)

        device.process_index = property(process_index)
        device.slice_index = property(lambda this: self._rank(this) // (hosts * each))

    def _rank(self, device):
        """A device's position among all devices of the job. Ids have gaps between processes."""
        if device.id not in self._ranks:
            found = jax_private.backends().devices()
            self._ranks = {each.id: rank for rank, each in enumerate(found)}
        return self._ranks[device.id]

    def _asks_for_mesh(self):
        return sys._getframe(2).f_code.co_filename.endswith(MESHES)

    def _property(self, kind, name, value):
        """Let a property of jaxlib's type have a value, except when jax itself asks."""
        real = getattr(kind, name)

        def answer(this):
            return value if self._asks() else real.__get__(this)

        setattr(kind, name, property(answer))


def _without_gpus(ask, names):
    """Wrap jax's function: the names of GPUs stand for no platform."""

    def named(platform):
        is_gpu = isinstance(platform, str) and platform in names
        return None if is_gpu else platform

    @functools.wraps(ask)
    def new_ask(*args, **kwargs):
        args = [named(value) for value in args]
        return ask(*args, **{name: named(value) for name, value in kwargs.items()})

    for name in ("cache_clear", "cache_info"):
        if hasattr(ask, name):
            setattr(new_ask, name, getattr(ask, name))
    return new_ask


def see_cudnn(module, platform):
    """Make jax's attention module find a cuDNN, if GPUs of this platform have one."""
    if platform == CUDA:
        _assume_cudnn(module)
    else:
        _no_cudnn(module)


def _assume_cudnn(module):
    """Make jax's attention find a cuDNN. It does not run here, but on the job's GPUs."""
    check = module.check_cudnn_version

    def new_check():
        try:
            found = check()
        except Exception:  # no plugin, no library
            found = 0
        if not found:
            warn(
                "no cuDNN is installed here; the program is captured as with cuDNN %d.%d"
                % (CUDNN // 10000, CUDNN // 100 % 100)
            )
        return found or CUDNN

    module.check_cudnn_version = new_check


def _no_cudnn(module):
    """Make jax's attention find no cuDNN, as on GPUs of other vendors."""

    def new_check():
        raise RuntimeError("cuDNN is not detected.")  # jax's own words

    module.check_cudnn_version = new_check


RESULTS_UNKNOWN = (
    "%s runs on GPUs alone, and this jax does not say how its results are sharded; "
    "set JAX_USE_SHARDY_PARTITIONER=true"
)
FOR_CPUS_ALONE = (
    "%s cannot be lowered for GPUs here (%s: %s); its code for CPUs is captured, "
    "without moves to host memory"
)

BYTES = 1e8
"""Bytes of arguments and results, over all devices, above which a program is not executed."""

# arithmetic operations per execution, loops counted once, above which a program is not executed
OPERATIONS = 1e10


def _is_long(module, jaxpr):
    """Whether a program has more than `OPERATIONS` and no effect besides its results. Its code for
    CPUs would take seconds to compile, and is not executed.
    """
    if getattr(jaxpr, "effects", True):
        return False
    return jax_private.operations_before(module) > OPERATIONS


class Lowering:
    """Lowers for GPUs, and decides what to compile.

    Args:
        record: gets names of modules that cannot be lowered for GPUs.
        folder: of the dumps.
        leaves_out: whether large programs are replaced by zeros. Programs that only GPUs can
            execute always are.
        gpu: facts about the GPU, as in `GpuAnswers`, with ``targets``: texts of a
            GpuTargetConfigProto, the one with most fields first.
    """

    def __init__(self, record, folder, leaves_out, gpu):
        self._record = record
        self.folder = folder
        self._gpu = gpu
        self._least = BYTES if leaves_out else None
        self._known = {}  # by the ids of jax's modules
        self._compilations = Compilations(record)
        self._zeros = {}

    def _of(self, module):
        """Return the facts about one of jax's modules: name of its dump, whether it was lowered
        here, the dumped module for GPUs, its replacement, and its function with its arguments. The
        module is kept, so that its id is not reused.
        """
        new = SimpleNamespace(
            module=module,
            name="",
            is_ours=False,
            for_gpus=None,
            instead=None,
            function="",
            takes={},
        )
        return self._known.setdefault(id(module), new)

    def watch(self):
        """Lower every module for GPUs, dump it, and compile what this class decides."""
        mlir = jax_private.lowering()
        lower = mlir.lower_jaxpr_to_module
        dump = mlir.dump_module_to_file

        @functools.wraps(lower)
        def new_lower(name, jaxpr, *args, **kwargs):
            # The device of a mesh counts as a GPU.
            is_here = tuple(kwargs.get("platforms", ())) in (("cpu",), ("gpu",))
            if not is_here or SetAside.is_on():
                return lower(name, jaxpr, *args, **kwargs)
            name = guarded(lambda: jax_private.name_by_user(name, jaxpr)) or name
            result = self._lowered(lower, name, jaxpr, args, kwargs)
            guarded(lambda: self._takes(result.module, name, jaxpr, kwargs))
            return result

        @functools.wraps(dump)
        def new_dump(module, stage_name):
            if SetAside.is_on():
                return None
            known = self._of(module)
            written = dump(known.for_gpus or module, stage_name)
            if written and stage_name == "compile":
                known.name = os.path.basename(str(written))
                if known.is_ours and not known.for_gpus:
                    self._record.note("not_lowered", known.name)
                guarded(lambda: self._compilations.dumped(known))
                guarded(lambda: self._record.compiling(known.name))
            return written

        mlir.lower_jaxpr_to_module = new_lower
        mlir.dump_module_to_file = new_dump
        guarded(jax_private.callbacks_of_cpus)
        guarded(lambda: jax_private.static_arguments(self._compilations.called))
        self._zeros = jax_private.compiled_instead(
            lambda module: self._of(module).instead,
            self._rescue,
            self._partition,
            self._compiled,
        )

    def _rescue(self, module):
        """Zeros for a program that XLA cannot compile for CPUs, such as attention by cuDNN; None if
        that fails. Where GSPMD decides how results are sharded, only the calls that CPUs lack
        become zeros.
        """
        for_gpus = self._of(module).for_gpus
        if for_gpus is None:
            return None
        return jax_private.signature(for_gpus, 0) or jax_private.without_calls(module)

    def is_zeros(self, call):
        """Whether an execution of this program returns zeros, for any arguments."""
        return id(call.xla_executable) in self._zeros

    def _lowered(self, lower, name, jaxpr, args, kwargs):
        """Return jax's lowered module: for GPUs if the program is not executed, else for CPUs."""
        for_gpus = why = None
        platforms = (self._gpu["platform"],)
        try:
            for_gpus = lower(name, jaxpr, *args, **dict(kwargs, platforms=platforms))
        except Exception as error:
            why = error
        if for_gpus is not None and self._least is not None:
            least = 0 if _is_long(for_gpus.module, jaxpr) else self._least
            zeros = jax_private.signature(for_gpus.module, least)
            if zeros is not None:
                return self._note(for_gpus, for_gpus.module, zeros)
        try:
            result = lower(name, jaxpr, *args, **dict(kwargs, platforms=("cpu",)))
        except Exception:
            if for_gpus is None:  # the program can only run on GPUs
                raise why from None
            zeros = jax_private.signature(for_gpus.module, 0)
            if not zeros:
                warn(RESULTS_UNKNOWN % name)
                raise
            return self._note(for_gpus, for_gpus.module, zeros)
        if for_gpus is None:
            text = " ".join(str(why).split())[:200]
            warn(FOR_CPUS_ALONE % (name, type(why).__name__, text))
            return self._note(result, None, None)
        return self._note(result, for_gpus.module, None)

    def _takes(self, module, name, jaxpr, given):
        known = self._of(module)
        function = jax_private.function_of(jax_private.info_of(jaxpr))
        known.function = function or jax_private.without_jit(name)
        known.takes = jax_private.arguments_of(jaxpr, given)

    def _note(self, result, for_gpus, instead):
        """Record what was lowered for a module, and return it."""
        known = self._of(result.module)
        known.is_ours = True
        known.for_gpus = for_gpus
        known.instead = instead
        return result

    def _partition(self, module, compile_, given):
        """Partition a module here if only its own callbacks can."""
        known = self._of(module)
        if known.name and known.for_gpus:
            dumped = os.path.join(self.folder, known.name)
            act = lambda: partition(dumped, known.for_gpus, compile_, given, self._gpu)
            guarded(act)

    def _compiled(self, module, executable, given):
        known = self._of(module)
        note = self._record.compiled
        guarded(lambda: note(executable, known.name, given, known.function))


DIFFERENCES = 1000  # most arguments that a function's second compilation lists


class CompiledFunction:
    """What is known about a compiled function."""

    def __init__(self):
        self.static = {}  # the static arguments of its last call
        self.called = None  # the function object of its last call
        self.compiled = None  # the function object of its last compilation
        self.takes = None  # arguments of its last compilation; None: not compiled yet
        self.first = ""  # the file name of its first module


class Compilations:
    """Why a function is compiled again: the arguments that differ from those of its last
    compilation.
    """

    def __init__(self, record):
        self._record = record
        self._functions = {}  # `CompiledFunction` by name

    def called(self, name, function, static):
        """Record that a function is traced, with these static arguments."""
        known = self._of(name)
        known.static = static
        known.called = function

    def _of(self, name):
        return self._functions.setdefault(name, CompiledFunction())

    def dumped(self, known):
        """Record the arguments of a module about to be compiled. If its function was compiled
        before, record the differences.
        """
        function = self._of(known.function)
        takes = dict(known.takes, **function.static)
        before, function.takes = function.takes, takes
        called = function.called
        is_same = called is not None and called is function.compiled
        function.compiled = called
        function.first = function.first or known.name
        if before is None:
            return
        differing = []
        for name in dict(before, **takes):
            was = before.get(name, "absent")
            now = takes.get(name, "absent")
            if was != now:
                differing.append([name, was, now])
        again = {
            "function": known.function.partition(" at ")[0],
            "first": function.first,
            "differing": differing[:DIFFERENCES],
            "same": is_same,
        }
        self._record.again(known.name, again)


CALL = "CustomSPMDPartitioning"
"""The custom call with which a module asks for a callback. It contains the callback's address."""

# of all passes of the partitioner, in jaxlib before 0.6 of one
DUMPS = "*.after_spmd[_-]partition*.hlo.pb"
COMPILE = "_compile.mlir"  # end of the name of jax's dump
PARTITIONED = ".after_spmd_partitioner.hlo.pb"
"""The same of the partitioned module."""

# seconds without CPU time after which a child hangs, on a lock that a thread held at the fork
IDLE_S = 20.0
POLL_S = 0.02


def partition(dumped, module, compile_, given, gpu):
    """If a module lowered for GPUs has custom partitioning, partition it, and write the result next
    to jax's dump.
    """
    is_divided = jax_private.options_in(given).num_partitions > 1
    if not is_divided or not dumped.endswith(COMPILE) or not _asks(dumped):
        return
    wanted = dumped[: -len(COMPILE)] + PARTITIONED
    folder = wanted + ".tmp"
    os.makedirs(folder, exist_ok=True)
    with warnings.catch_warnings():
        # jax warns about forks; this child starts its own threads
        warnings.simplefilter("ignore")
        sys.stderr.flush()
        child = os.fork()
    if child == 0:
        _compile(folder, module, compile_, given, gpu)
    try:
        found = _dumped(child, folder)
        if found:
            os.replace(found, wanted)
        else:
            with open(os.path.join(folder, "log"), errors="replace") as log:
                answer = " ".join(log.read().split())[-300:] or "no answer"
            why = "%s cannot be partitioned in the program (%s)"
            warn(why % (os.path.basename(dumped), answer))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _asks(dumped):
    with open(dumped, "rb") as file:
        return CALL.encode() in file.read()


def _compile(folder, module, compile_, given, gpu):
    """In the child: compile, then end the process."""
    try:
        path = os.path.join(folder, "log")
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        jax_private.compile_deviceless(compile_, module, given, gpu, folder)
    except BaseException as error:
        os.write(2, ("%s: %s" % (type(error).__name__, error)).encode())
    os._exit(0)


def _dumped(child, folder):
    """Return the completely written partitioned module; None if the child ended without it."""
    used = None
    since = time.monotonic()
    ended = False
    try:
        while True:
            found = glob.glob(os.path.join(glob.escape(folder), DUMPS))
            if found and (ended or _is_written(child, found[0])):
                return found[0]
            if ended or time.monotonic() - since > IDLE_S:
                return None
            ended = os.waitpid(child, os.WNOHANG)[0] == child
            if not ended:
                time.sleep(POLL_S)
                now = _cpu_time(child)
                if now != used:
                    used = now
                    since = time.monotonic()
    finally:
        if not ended:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _cpu_time(child):
    """The CPU time of a process, in ticks of user and system."""
    with open("/proc/%d/stat" % child) as file:
        return file.read().rpartition(")")[2].split()[11:13]


def _is_written(child, path):
    """Whether a process has written a file, and closed it."""
    return os.path.getsize(path) > 0 and not _holds(child, path)


def _holds(child, path):
    """Whether a process has a file open."""
    for entry in glob.glob("/proc/%d/fd/*" % child):
        try:
            if os.path.samefile(entry, path):
                return True
        except OSError:  # closed meanwhile
            continue
    return False
