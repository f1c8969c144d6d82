"""All of jax that is private and that the hook uses. Where a release lacks a part, what stands on it is left out.

Known to work: jax 0.4.31 to 0.12.
"""

import importlib
import logging
import sys
import threading

COMPILER_LOGGER = "jax._src.compiler"


def has_backends():
    """Whether the program has set a backend up; asking jax for devices would do it."""
    return bool(getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None))


def python_calls(new_data, new_rebuild):
    """Have every call of a jitted function that comes through Python ask us.

    Args:
        new_data: called in place of jax's function, with that function first: what C++ needs to make the next call.
        new_rebuild: likewise: whether C++ has to forget a jitted function.

    Returns:
        Whether this jax has both.
    """
    pjit = sys.modules.get("jax._src.pjit")
    data = getattr(pjit, "_get_fastpath_data", None)
    rebuild = getattr(pjit, "_need_to_rebuild_with_fdo", None)
    if not data or not rebuild:
        return False
    pjit._get_fastpath_data = lambda *args, **kwargs: new_data(data, *args, **kwargs)
    pjit._need_to_rebuild_with_fdo = lambda *args, **kwargs: new_rebuild(rebuild, *args, **kwargs)
    return True


def show_cache_size(is_hidden):
    """While `is_hidden()`, a function that C++ has forgotten says that it was compiled once all the same."""
    jitted = type(sys.modules["jax"].jit(lambda: None))
    size = jitted._cache_size
    jitted._cache_size = lambda this: size(this) or int(is_hidden())


def compiler_messages(on_message):
    """Call `on_message(text)` for every message of jax's compiler, without changing what is printed."""
    logger = logging.getLogger(COMPILER_LOGGER)
    before = logger.level

    def see(record):
        on_message(record.getMessage())
        return record.levelno >= (before or logger.parent.getEffectiveLevel())

    logger.addFilter(see)
    logger.setLevel(logging.DEBUG)


def optimised_found(on_found):
    """Call `on_found()` when AutoPGLE finds a function's optimised program in the cache: it profiles it no longer."""
    profiler = getattr(sys.modules.get("jax._src.profiler"), "PGLEProfiler", None)
    disable = getattr(profiler, "disable", None)
    if disable is None:
        return

    def new_disable(this):
        on_found()
        return disable(this)

    profiler.disable = new_disable


def lowering():
    """The module whose functions ``lower_jaxpr_to_module`` and ``dump_module_to_file`` lower and dump programs."""
    return importlib.import_module("jax._src.interpreters.mlir")


def jaxlib_version():
    """The version of the program's jaxlib."""
    return importlib.import_module("jaxlib.version").__version__


def compiled_and_executed(on_compiling, on_compiled, on_executed):
    """Hear of every compilation and every execution, for which the calls that C++ makes by itself are switched off.

    Args:
        on_compiling: called with the file that a module was dumped to, before it is compiled.
        on_compiled: called with XLA's executable and the file that the module was dumped to, or None.
        on_executed: called with XLA's executable before each execution.
    """
    compiler = importlib.import_module("jax._src.compiler")
    pxla = importlib.import_module("jax._src.interpreters.pxla")
    mlir, local = lowering(), threading.local()
    compile_, dump = compiler.compile_or_get_cached, mlir.dump_module_to_file
    call = pxla.ExecuteReplicated.__call__

    def new_compile(*args, **kwargs):
        local.dumped = None
        executable = compile_(*args, **kwargs)
        on_compiled(executable, local.dumped)
        return executable

    def new_dump(module, stage_name):
        local.dumped = dump(module, stage_name)
        if local.dumped and stage_name == "compile":
            on_compiling(local.dumped)
        return local.dumped

    def new_call(this, *args, **kwargs):
        on_executed(this.xla_executable)
        return call(this, *args, **kwargs)

    compiler.compile_or_get_cached, mlir.dump_module_to_file = new_compile, new_dump
    pxla.ExecuteReplicated.__call__ = new_call
    pxla.MeshExecutable.create_cpp_call = lambda *args, **kwargs: None
    python_calls(lambda *args, **kwargs: None, lambda rebuild, *args: rebuild(*args))
