"""All private parts of jax that the hook uses. If a release lacks a part, pgle skips what needs it.

Known to work: jax 0.4.38 to 0.12.
"""

import contextlib
import functools
import importlib
import inspect
import itertools
import logging
import math
import os
import re
import sys
import weakref

from pgle_hook import after_import, guarded, watch

COMPILER_LOGGER = "jax._src.compiler"
MAPPED = "vmap("  # part of an operation's name (`name_of`), once for each `jax.vmap` around it


def has_backends():
    """Whether the program has set a backend up. Asking jax for devices would do that."""
    return bool(getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None))


def before_backends(act):
    """Call `act()` before each backend is set up. XLA reads its flags with the first one. Call it
    at once if this jax lacks the function.
    """
    if not watch(backends(), "_init_backend", before=lambda *_, **__: act()):
        act()


def backends():
    """Return the module with ``devices``, ``get_backend``, ``default_backend`` and similar
    functions.
    """
    return importlib.import_module("jax._src.xla_bridge")


def device_types():
    """Return jaxlib's types of devices and clients."""
    try:
        bindings = importlib.import_module("jaxlib._jax")
    except ImportError:  # before jax 0.6
        bindings = importlib.import_module("jaxlib.xla_extension")
    return bindings.Device, bindings.Client


def slice_on_host():
    """Make NumPy cut an array into the devices' parts. jax's own program has one result per device,
    and XLA takes minutes to compile it for 2,048.
    """
    array = importlib.import_module("jax._src.array").ArrayImpl

    def new_slice(this, starts, limits, removed):
        values = sys.modules["numpy"].asarray(this)
        parts = []
        for start, limit, axes in zip(starts, limits, removed):
            part = values[tuple(map(slice, start, limit))]
            parts.append(part.squeeze(axes))
        return parts

    if hasattr(array, "_multi_slice"):
        array._multi_slice = new_slice


UNUSABLE = "Jax plugin configuration error"


def silence_plugins():
    """Keep jax from printing a traceback for a plugin that finds no GPU, because the program runs
    on CPUs.
    """
    log = logging.getLogger("jax._src.xla_bridge")
    log.addFilter(lambda record: not record.msg.startswith(UNUSABLE))


def cudnn_imported(act):
    """Call `act(module)` once jax's cuDNN attention is imported. Its ``check_cudnn_version``
    returns the version.
    """
    after_import("jax._src.cudnn.fused_attention_stablehlo", act)


def process_of():
    """Return the number of this process, and the number of processes. Asking jax itself would set a
    backend up.
    """
    state = importlib.import_module("jax._src.distributed").global_state
    return state.process_id, state.num_processes or 1


def coordination():
    """Return the client of the job's coordination service; None without one."""
    return importlib.import_module("jax._src.distributed").global_state.client


def cache_hits(jax):
    """Count hits of JAX's compilation cache from now on. Return a function that gives the number
    since its last call.
    """
    events = []

    def on_event(event, **_):
        if event.endswith("/cache_hits"):
            events.append(event)

    jax.monitoring.register_event_listener(on_event)

    def count():
        found = len(events)
        del events[:found]
        return found

    return count


def first_executions(act):
    """Call `act(call)` with jax's record of each executable before its first execution. C++ makes
    the later calls.
    """
    kind = importlib.import_module("jax._src.interpreters.pxla").ExecuteReplicated
    seen = weakref.WeakSet()

    def before(call, *_):
        if call not in seen:
            seen.add(call)
            act(call)

    watch(kind, "__call__", before=before)


def processes_of(call):
    """The process of each device of an executable, as its program numbers them."""
    ins = getattr(getattr(call, "in_handler", None), "in_shardings", ())
    outs = getattr(getattr(call, "out_handler", None), "out_shardings", ())
    for sharding in (*ins, *outs):
        devices = getattr(sharding, "_device_assignment", None)
        if devices:
            return [device.process_index for device in devices]
    return []


def hlo_text(call):
    """Return the compiled module of an executable as text, in the order of its schedule."""
    return call.xla_executable.hlo_modules()[0].to_string()


def python_calls(new_data, new_rebuild):
    """Intercept every call of a jitted function that comes through Python. Return whether this jax
    can do that.

    Args:
        new_data: called with jax's function first: what C++ needs to make the next call.
        new_rebuild: likewise: whether C++ has to forget a jitted function.
    """
    pjit = sys.modules.get("jax._src.pjit")
    data = getattr(pjit, "_get_fastpath_data", None)
    rebuild = getattr(pjit, "_need_to_rebuild_with_fdo", None)
    if not data or not rebuild:
        return False
    pjit._get_fastpath_data = functools.partial(new_data, data)
    pjit._need_to_rebuild_with_fdo = functools.partial(new_rebuild, rebuild)
    return True


def show_cache_size(is_hidden):
    """While `is_hidden()`, a function that C++ has forgotten still reports that it was compiled
    once.
    """
    jitted = type(sys.modules["jax"].jit(lambda: None))
    size = jitted._cache_size
    jitted._cache_size = lambda this: size(this) or int(is_hidden())


def compiler_messages(on_message):
    """Call `on_message(text)` for every message of jax's compiler, without changing the output."""
    logger = logging.getLogger(COMPILER_LOGGER)
    before = logger.level

    def see(record):
        on_message(record.getMessage())
        return record.levelno >= (before or logger.parent.getEffectiveLevel())

    logger.addFilter(see)
    logger.setLevel(logging.DEBUG)


def optimised_found(on_found):
    """Call `on_found()` when AutoPGLE finds a function's optimised program in the cache, and so
    does not profile it.
    """
    profiler = getattr(sys.modules.get("jax._src.profiler"), "PGLEProfiler", None)
    watch(profiler, "disable", before=lambda this: on_found())


def is_of_jax(name, source):
    """Whether a module may be of jax's own: an operation outside jit, or a function that jax jits.

    Args:
        name: of the function that was compiled.
        source: place of its definition, from `function_of`; empty: unknown.
    """
    if source and not is_written_in_jax(source):
        return False
    jax = sys.modules["jax"]
    for module in (jax.lax, jax.numpy):
        if callable(getattr(module, name, None)):
            return True
    jitted = type(jax.jit(lambda: None))
    for path, module in sys.modules.copy().items():
        is_inner = path.startswith("jax._src.") and module
        if is_inner and isinstance(vars(module).get(name), jitted):
            return True
    return False


def lowering():
    """Return the module with ``lower_jaxpr_to_module`` and ``dump_module_to_file``, which lower and
    dump programs.
    """
    return importlib.import_module("jax._src.interpreters.mlir")


def callbacks_of_cpus():
    """Run callbacks of programs lowered for GPUs (`jax.debug.print`, `jax.pure_callback`) on the
    CPUs. jax refuses devices of another platform.
    """
    context = lowering().ModuleContext
    ask = getattr(context, "get_backend", None)
    if ask is None:  # older releases do not check
        return

    @functools.wraps(ask)
    def new_ask(this, *args, **kwargs):
        try:
            return ask(this, *args, **kwargs)
        except ValueError:
            return this.backend

    context.get_backend = new_ask


def jaxlib_version():
    """The version of the program's jaxlib."""
    return importlib.import_module("jaxlib.version").__version__


def executed(results):
    """Replace every execution by a call of `results`, with jax's record of the executable and the
    function that executes it. Calls from C++ are turned off.
    """
    pxla = importlib.import_module("jax._src.interpreters.pxla")
    call = pxla.ExecuteReplicated.__call__

    def new_call(this, *args, **kwargs):
        return results(this, lambda: call(this, *args, **kwargs))

    pxla.ExecuteReplicated.__call__ = new_call
    pxla.MeshExecutable.create_cpp_call = lambda *args, **kwargs: None
    python_calls(lambda *args, **kwargs: None, lambda rebuild, *args: rebuild(*args))


def compiled_instead(other, rescue, before, after):
    """Compile `other(module)` instead of every module; None: the module itself.

    Args:
        other: called with the module. rescue: called with a module that XLA cannot compile for
        CPUs; returns a replacement, or None.
        before: called first, with the module, jax's compiling function, and that function's
            arguments after backend and module.
        after: called last, with the module, XLA's executable, and the same.

    Returns:
        Replaced modules by their executables' ids; filled while modules are compiled.
    """
    compiler = importlib.import_module("jax._src.compiler")
    name = "backend_compile_and_load"
    if not hasattr(compiler, name):  # older releases
        name = "backend_compile"
    compile_ = getattr(compiler, name)
    found = {}

    def new_compile(backend, module, *args, **kwargs):
        given = [*args, *kwargs.values()]
        before(module, compile_, given)
        instead = other(module)
        compiled = module if instead is None else instead
        try:
            executable = compile_(backend, compiled, *args, **kwargs)
        except Exception:
            instead = rescue(module) if instead is None else None
            if instead is None:
                raise
            executable = compile_(backend, instead, *args, **kwargs)
        if instead is not None:
            found[id(executable)] = executable, module
            _answer_costs(type(executable), backend, found)
        after(module, executable, given)
        return executable

    setattr(compiler, name, new_compile)
    return found


def options_in(given):
    """xla_client's CompileOptions among the arguments of a compilation."""
    return next(item for item in given if hasattr(item, "executable_build_options"))


def compile_deviceless(compile_, module, given, gpu, folder):
    """Compile a module without a GPU, in a forked process, with dumps.

    Args:
        compile_: jax's function that compiles a module on a backend.
        module: jax's module.
        given: what `compile_` gets after backend and module, for CPUs.
        gpu: ``targets``, texts of a GpuTargetConfigProto, of which the first is taken that this XLA
            knows; ``platform``.
        folder: for XLA's dumps.
    """
    mlir = lowering()
    # Its threads exist only in the parent, and its end would wait for them.
    if hasattr(mlir, "global_thread_pool"):
        module.context.enable_multithreading(False)
        mlir.global_thread_pool_of_parent = mlir.global_thread_pool
        mlir.global_thread_pool = importlib.import_module("jaxlib.mlir.ir").ThreadPool()
    options = options_in(given)
    build = options.executable_build_options
    build.debug_options.xla_dump_to = folder
    build.debug_options.xla_dump_hlo_as_proto = True
    major, minor = map(int, jaxlib_version().split(".")[:2])
    if (major, minor) < (0, 6):  # these releases lack their own dump for this
        build.debug_options.xla_dump_hlo_pass_re = "spmd-partitioning"
    devices = _topology_devices(gpu, options.num_partitions * options.num_replicas)
    sharding = sys.modules["jax"].sharding.SingleDeviceSharding(devices[0])
    kind = type(sharding._internal_device_list)
    arguments = []
    for item in given:
        arguments.append(kind(tuple(devices)) if isinstance(item, kind) else item)
    compile_(devices[0].client, module, *arguments)


def _topology_devices(gpu, count):
    """Compile-only devices of a GPU."""
    *others, last = gpu["targets"]
    topologies = importlib.import_module("jax.experimental.topologies")
    settings = {"platform": gpu["platform"], "topology": "1x1x%d" % count}
    get = functools.partial(topologies.get_topology_desc, "", **settings)
    for text in others:
        try:
            return get(target_config=text).devices
        except Exception:
            continue
    return get(target_config=last).devices


def _answer_costs(kind, backend, modules):
    """Let a replacing executable report the original module's costs, because programs compute
    throughput from ``compiled.cost_analysis()["flops"]``. The costs are those before XLA's
    optimization, per device.
    """
    cost = kind.cost_analysis
    if getattr(cost, "is_ours", False):
        return

    def new_cost(this):
        known = cost(this)
        if id(this) not in modules:
            return known
        _, module = modules[id(this)]
        try:
            costs = _costs_before(module, backend)
            devices = module.operation.attributes["mhlo.num_partitions"].value
        except Exception:  # a release without these parts
            return known
        shares = {name: value / devices for name, value in costs.items()}
        return [shares] if isinstance(known, list) else shares

    new_cost.is_ours = True
    kind.cost_analysis = new_cost


def _costs_before(module, backend):
    """XLA's analysis of jax's module before optimization, by name, for all devices together."""
    bindings = sys.modules[device_types()[0].__module__]
    code = lowering().module_to_bytecode(module)
    computation = bindings.mlir.mlir_module_to_xla_computation(
        code, use_tuple_args=False
    )
    return bindings.hlo_module_cost_analysis(backend, computation.as_hlo_module())


def operations_before(module):
    """Arithmetic operations of one execution of jax's module on all devices, before optimization;
    loops count once. 0 if no backend is set up, or this jax cannot tell.
    """
    backend = getattr(backends(), "_backends", {}).get("cpu")
    if backend is None:
        return 0.0
    try:
        return _costs_before(module, backend).get("flops", 0.0)
    except Exception:  # a release without these parts
        return 0.0


def signature(module, least):
    """Return a module with the same arguments, results and shardings, whose results are zeros. None
    if arguments and results have fewer than `least` bytes, if GSPMD must decide a result's
    sharding, or if this jax cannot tell.
    """
    try:
        return _signature(module, least)
    except Exception:  # results that are no numbers, a jax without these parts
        return None


def _signature(module, least):
    ir = importlib.import_module("jaxlib.mlir.ir")
    main = _main_of(module)
    results = list(main.type.results)
    if sum(_bytes(ir, item) for item in [*main.type.inputs, *results]) < least:
        return None
    if not _all_sharded(ir, module, main, results):
        module = _propagated(module)
        if module is None:
            return None
    operations = list(module.body.operations)
    with module.context, ir.Location.unknown():
        made = ir.Module.create()
        for attribute in module.operation.attributes:
            name = getattr(attribute, "name", attribute)  # a mapping in later releases
            made.operation.attributes[name] = module.operation.attributes[name]
        for item in operations:
            if item.operation.name != "func.func" or _symbol(item) == "main":
                made.body.append(item.operation.clone())
        block = _main_of(made).regions[0].blocks[0]
        for item in reversed(list(block.operations)):
            item.operation.erase()
        with ir.InsertionPoint(block):
            zeros = [_zeros(ir, item) for item in results]
            ir.Operation.create("func.return", operands=zeros)
    return made


ONLY_ON_GPUS = ("__cu", "CustomSPMDPartitioning")
"""What names of calls begin with that only GPUs execute; one that jax partitions itself hides
another.
"""


def without_calls(module):
    """A copy of a module with zeros for the results of calls that only GPUs execute; None if it has
    no such call, or this jax cannot make them.
    """
    try:
        return _without_calls(module)
    except Exception:  # as of a call whose results are no arrays
        return None


def _without_calls(module):
    ir = importlib.import_module("jaxlib.mlir.ir")
    copy = ir.Module.parse(module.operation.get_asm(binary=True), module.context)
    calls = []
    _collect_calls(copy.operation, calls)
    with copy.context, ir.Location.unknown():
        for call in calls:
            with ir.InsertionPoint(call):
                zeros = [_zeros(ir, result.type) for result in call.results]
            for result, zero in zip(call.results, zeros):
                result.replace_all_uses_with(zero)
            call.erase()
    return copy if calls else None


def _collect_calls(operation, found):
    """Append all calls in an operation that only GPUs execute, inner ones first."""
    for region in operation.regions:
        for block in region.blocks:
            for item in block.operations:
                _collect_calls(item.operation, found)
                if _target_of(item.operation).startswith(ONLY_ON_GPUS):
                    found.append(item.operation)


def _target_of(operation):
    """What a custom call calls; empty for another operation."""
    if operation.name != "stablehlo.custom_call":
        return ""
    return operation.attributes["call_target_name"].value


def _propagated(module):
    """Return a copy with shardings propagated as XLA does with Shardy; None for a module without
    Shardy. In jaxlib 0.9.2 the pipeline crashes the process for scans and for differentiated
    `shard_map`.
    """
    names = {item.operation.name for item in module.body.operations}
    if jaxlib_version().startswith("0.9.") or "sdy.mesh" not in names:
        return None
    copy = module.operation.clone()
    with module.context:
        passes = importlib.import_module("jaxlib.mlir.passmanager").PassManager
        passes.parse("builtin.module(sdy-propagation-pipeline)").run(copy.operation)
    return copy


def _main_of(module):
    return next(item for item in module.body.operations if _symbol(item) == "main")


def _symbol(operation):
    attributes = operation.operation.attributes
    return attributes["sym_name"].value if "sym_name" in attributes else None


def _all_sharded(ir, module, main, results):
    """Whether every result has a sharding, or cannot have one."""
    attributes = module.operation.attributes
    partitions = "mhlo.num_partitions"
    if partitions not in attributes or attributes[partitions].value == 1:
        return True
    given = [{}] * len(results)
    if "res_attrs" in main.attributes:
        given = main.attributes["res_attrs"]
    for own, result in zip(given, results):
        is_sharded = "sdy.sharding" in own or "mhlo.sharding" in own
        if not is_sharded and ir.RankedTensorType(result).shape:
            return False
    return True


def _bytes(ir, given):
    kind = ir.RankedTensorType(given)
    return math.prod(kind.shape) * getattr(kind.element_type, "width", 32) / 8


def _zeros(ir, result):
    """Make a constant of zeros with the type of a result."""
    element = ir.RankedTensorType(result).element_type
    is_integer = re.fullmatch(r"[su]?i\d+", str(element))
    zero = (ir.IntegerAttr if is_integer else ir.FloatAttr).get(element, 0)
    value = ir.DenseElementsAttr.get_splat(result, zero)
    return ir.Operation.create(
        "stablehlo.constant", results=[result], attributes={"value": value}
    ).result


def may_be_left_out(call):
    """Whether an execution has no effect besides its results: no ordered effect, and no write to a
    reference.
    """
    return not call.ordered_effects and not getattr(call, "mut", None)


def work_of(call):
    """Arithmetic operations and bytes read and written by one execution on one device; loops count
    once.
    """
    found = _costs_of(call.xla_executable)
    return found.get("flops", 0.0), found.get("bytes accessed", 0.0)


def _costs_of(executable):
    """XLA's analysis of an executable, by name. Before jax 0.5 it is a list with one for each
    module.
    """
    found = executable.cost_analysis() or {}
    return found[0] if isinstance(found, list) else found


def devices_of(call):
    """Number of this process's devices that run an executable."""
    return len(call._local_devices)


def hlo_of(call):
    """The optimised HLO of an executable, as text."""
    return "\n".join(module.to_string() for module in call.xla_executable.hlo_modules())


def results_of(call, values):
    """Return arrays as an execution would. `values` gives each device's NumPy array for a shape and
    dtype.
    """
    jax = sys.modules["jax"]
    found = []
    out = call.out_handler
    for aval, sharding in zip(out.out_avals, out.out_shardings):
        shape = tuple(sharding.shard_shape(aval.shape))
        dtype = aval.dtype
        if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):  # keys
            shape = shape + tuple(dtype._impl.key_shape)
            dtype = "uint32"
        value = values(shape, dtype)
        places = map(_placement(sharding), call._local_devices)
        found.append([jax.device_put(value, place) for place in places])
    return out(found)


def _placement(sharding):
    """Map a device to the place of its part of an array with this sharding: the device, or its
    host's memory.
    """
    kind = getattr(sharding, "memory_kind", None)
    if kind is None:
        return lambda device: device
    single = sys.modules["jax"].sharding.SingleDeviceSharding
    return lambda device: single(device, memory_kind=kind)


def arguments_of(jaxpr, given):
    """Return type, shape, weak type and sharding of a module's arguments, in words, by argument
    name.

    Args:
        jaxpr: of the function.
        given: the keyword arguments of ``lower_jaxpr_to_module``.
    """
    avals = given.get("in_avals") or jaxpr.in_avals
    count = len(avals)
    names = (given.get("arg_names") or ())[:count]
    shardings = (given.get("arg_shardings") or ())[:count]
    found = {}
    named = itertools.zip_longest(avals, names, shardings)
    for number, (aval, name, sharding) in enumerate(named):
        is_scalar = not getattr(aval, "shape", ())
        if is_scalar and not hasattr(sharding, "spec"):
            sharding = None  # jax itself has decided the placement
        text = _type_in_words(aval) + _sharding_in_words(sharding)
        found[str(name or "argument %d" % number)] = text
    return found


def _type_in_words(aval):
    """Type and shape of a value: ``weakly typed float32[8,128]``."""
    dtype = getattr(aval, "dtype", None)
    if dtype is None:
        return str(aval)
    shape = ",".join(map(str, getattr(aval, "shape", ())))
    weak = "weakly typed " if getattr(aval, "weak_type", False) else ""
    return "%s%s[%s]" % (weak, dtype, shape)


def _sharding_in_words(sharding):
    """How an argument is placed on several devices; empty if nobody has decided it."""
    if sharding is None or type(sharding).__name__ == "UnspecifiedValue":
        return ""
    spec = getattr(sharding, "spec", None)
    if spec is None:
        return " on %d devices" % len(getattr(sharding, "device_set", ()))
    parts = list(spec)
    while parts and parts[-1] is None:
        parts.pop()
    split = ", ".join(map(repr, parts)).replace(repr(PMAP_AXIS), "pmap")
    return " sharded P(%s)" % split if parts else " on every device of the mesh"


def before_traces(act):
    """Call `act(function, args, options)` before jax traces a jitted function or finds its trace.
    Return whether this jax can do that.
    """
    pjit = sys.modules.get("jax._src.pjit")
    before = lambda function, settings, args, options: act(function, args, options)
    return watch(pjit, "_infer_params", before=before)


def static_arguments(on_call):
    """Call `on_call(name, function, {argument: value in words})` for every jitted call that jax
    traces. The name comes from `function_of`. The values are the static arguments that distinguish
    compilations. A function that `jax.pmap` maps and its arguments have the user's names. Nothing
    happens if this jax lacks the function that is replaced here.
    """
    pjit = sys.modules.get("jax._src.pjit")
    describe = getattr(pjit, "debug_info", None)
    if describe is None:
        return

    def new_describe(kind, function, args, kwargs, *more, **options):
        found = describe(kind, function, args, kwargs, *more, **options)
        found = guarded(lambda: _of_user(found, function, args)) or found
        name = function_of(found) or getattr(function, "__name__", None)
        if name is not None:
            code = getattr(function, "__code__", None)
            own = code.co_varnames if code else ()
            static = dict(zip(("static_argnums", "static_argnames"), more))
            static.update(options)
            numbers = static.get("static_argnums")
            names = static.get("static_argnames")
            statics = lambda: _statics(own, args, kwargs, numbers, names)
            guarded(lambda: on_call(name, function, statics()))
        return found

    def older_describe(kind, source, signature, *call):
        if source is not None:
            own = list(signature.parameters) if signature else ()
            guarded(lambda: on_call(source, signature, _statics(own, *call)))
        return describe(kind, source, signature, *call)

    # jax 0.4 gives source and signature of the function in its place
    is_older = "fun_signature" in inspect.signature(describe).parameters
    pjit.debug_info = older_describe if is_older else new_describe


def function_of(info):
    """Describe a function that jax traces: ``train_step at /home/me/train.py:12``; empty if this
    jax does not know.
    """
    return getattr(info, "func_src_info", "") or ""


def info_of(jaxpr):
    """What jax knows of the function that it has traced to this; None if it does not say it."""
    return getattr(getattr(jaxpr, "jaxpr", jaxpr), "debug_info", None)


def name_by_user(name, jaxpr):
    """The name of a module, with the user's function in place of that of `jax.pmap` itself, by
    which jax 0.10 names every module of it: ``jit_train_step`` for ``jit__fun``.
    """
    own = function_of(info_of(jaxpr)).partition(" at ")[0]
    return name.replace(OF_PMAP, own) if without_jit(name) == OF_PMAP and own else name


def is_written_in_jax(source):
    """Whether a function, as of `function_of`, is defined in a file of jax's own."""
    folder = os.path.dirname(sys.modules["jax"].__file__)
    return source.partition(" at ")[2].startswith(folder + os.sep)


def without_jit(name):
    """The name of a function, from jax's name of its compiled module."""
    return re.sub(r"^jit[_(]|\)$", "", name)


PMAP = "/jax/_src/pmap.py"
OF_PMAP = "_fun"  # jax's function around the user's, by jax 0.10
PMAP_AXIS = "_internal_pmap_axis_name"  # used if the user gives no name


def _of_user(info, function, args):
    """For a function that `jax.pmap` made, return jax's record with the user's function and
    argument names; None for any other function.
    """
    inner = inspect.unwrap(function)
    code = getattr(inner, "__code__", None)
    if code is None or not code.co_filename.endswith(PMAP):
        return None
    around = inspect.getclosurevars(inner).nonlocals
    own = around["fun"].debug_info
    tree = sys.modules["jax"].tree_util
    given = tree.tree_unflatten(around["in_tree"], list(range(len(args))))
    paths, _ = tree.tree_flatten_with_path(given)
    names = [_argument(tree, path, own.arg_names) for path, _ in paths]
    return info._replace(func_src_info=own.func_src_info, arg_names=tuple(names))


def _argument(tree, path, names):
    """The name of an argument at a path in (arguments, keyword arguments)."""
    kind, which, *rest = path
    if kind.idx:
        name = str(which.key)
    elif names and which.idx < len(names):
        name = names[which.idx]
    else:
        name = "args[%d]" % which.idx
    return name + tree.keystr(tuple(rest))


def _statics(own, args, kwargs, numbers, names):
    """The static arguments of a call, and the variables of its function, as texts by name."""
    found = {}
    for number in numbers or ():
        if number < len(args):
            name = own[number] if number < len(own) else "argument %d" % number
            found[name] = _value_in_words(args[number])
    for name in names or ():
        if name in kwargs:
            found[name] = _value_in_words(kwargs[name])
    return found


LONGEST_VALUE = 60  # most characters of a static value


def _value_in_words(value):
    text = " ".join(repr(value).split())
    if len(text) > LONGEST_VALUE:
        text = text[: LONGEST_VALUE - 1] + "…"
    return "static " + text


@contextlib.contextmanager
def as_traced(eqn):
    """Within the block, operations get the source, names and settings of a traced one."""
    info = importlib.import_module("jax._src.source_info_util")
    names = info.current_name_stack() + eqn.source_info.name_stack
    traced = info.user_context(eqn.source_info.traceback, name_stack=names)
    with traced, eqn.ctx.manager:
        yield


def traced_only():
    """Within the block, jax evaluates no constants while it traces, even in
    `ensure_compile_time_eval`. Constants may be large, such as a mask of all scores.
    """
    config = importlib.import_module("jax._src.config")
    fold = getattr(config, "eager_constant_folding", None)
    return contextlib.nullcontext() if fold is None else fold(False)


def without_constants(jaxpr):
    """Turn a traced function's constants into its first arguments."""
    partial_eval = importlib.import_module("jax._src.interpreters.partial_eval")
    return partial_eval.convert_constvars_jaxpr(jaxpr)


def may_keep_negatives():
    """Whether `.at[…].get` has an option that negative indices do not count from the end."""
    methods = importlib.import_module("jax._src.numpy.array_methods")
    kind = getattr(methods, "_IndexUpdateRef", None)
    parameters = inspect.signature(kind.get).parameters if kind else ()
    return "wrap_negative_indices" in parameters


def held_and_carried(params):
    """Return how many arguments of a scan's body stay the same, and how many are carried; zeros if
    it is not a `jax.lax.scan`.
    """
    if "ft_in" in params:  # from jax 0.12 on
        held, carried, _ = params["ft_in"].unpack()
        return len(list(held)), len(list(carried))
    return params.get("num_consts", 0), params.get("num_carry", 0)


def frames_of(eqn):
    """Return (file, line, function) of the calls that made a traced operation, the innermost
    first.
    """
    traceback = eqn.source_info.traceback
    if traceback is None:
        return []
    frames = traceback.frames
    return [(each.file_name, each.line_num, each.function_name) for each in frames]


def name_of(eqn):
    """The scopes and transformations around a traced operation, as one text."""
    return str(eqn.source_info.name_stack)


def is_derivative_of_jax(params):
    """Whether the derivative of a ``custom_jvp_call`` with these parameters is a function of jax,
    as that of `jax.nn.softmax`; False if this jax cannot tell.
    """
    try:
        place = _place_of_derivative(params)
    except Exception:  # a release without these parts
        return False
    jax = sys.modules["jax"]
    # By `defjvps` a program's derivatives become a function of this file, too.
    combine = jax.custom_derivatives.custom_jvp.defjvps
    is_combined = combine.__code__.co_filename in place
    return os.path.dirname(jax.__file__) + os.sep in place and not is_combined


def _place_of_derivative(params):
    """File and function of a custom derivative, from jax's records."""
    if "jvp_jaxpr_fun" in params:
        return params["jvp_jaxpr_fun"].debug_info.func_src_info
    nonlocals = lambda function: inspect.getclosurevars(function).nonlocals
    thunk = nonlocals(params["jvp_jaxpr_thunk"])["fn"]  # before jax 0.5.1
    return nonlocals(thunk)["jvp"].f.__code__.co_filename


@functools.cache
def hide_calls(folder):
    """Exclude the functions of a folder from the source places of operations. jax keeps a list of
    folders, so each is added once.
    """
    importlib.import_module("jax._src.source_info_util").register_exclusion(folder)


_TRACING = os.path.join("jax", "_src", "interpreters", "partial_eval.py")


def is_traced(error):
    """Whether an exception does not depend on numbers. Either jax raised it because of types,
    shapes or trees, or jax was tracing a function. The frames' callers are followed, because jax
    removes its own frames from tracebacks.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    frame = trace and trace.tb_frame
    if type(error) is ValueError and frame and _is_of_jax_itself(error, frame):
        return True
    while frame is not None:
        if frame.f_code.co_filename.endswith(_TRACING):
            return True
        frame = frame.f_back
    return False


def _is_of_jax_itself(error, frame):
    """Whether jax raised an exception in this frame, or removed its own frames there and left a
    note.
    """
    notes = " ".join(getattr(error, "__notes__", ()))
    return "/jax/_src/" in frame.f_code.co_filename or "JAX has removed" in notes
