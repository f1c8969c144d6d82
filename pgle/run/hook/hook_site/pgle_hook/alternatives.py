"""Calls of a captured program that have alternatives: record them, and change those that pgle asks
for.

Only public functions of jax are replaced, and only in the process that captures. Each passes its
arguments on unchanged, unless an alternative for its call site is requested.
"""

import contextlib
import functools
import inspect
import itertools
import linecache
import os
import sys
import threading
import weakref
from collections import Counter

from pgle_hook import (
    SetAside,
    after_import,
    batches,
    by_hand,
    casts,
    chunks,
    fused_call,
    fusing,
    guarded,
    jax_private,
    lookups,
)
from pgle_hook.by_hand import HALF
from pgle_hook.records import describe, is_own, packages_of
from pgle_hook.rewrite import Rewriter, divided_as, divided_sharding
from pgle_hook.values import Values

BY_HAND = "by hand"
"""Replaces a call site: the program's own operations, wherever it writes them."""

NOWHERE = ("", "", "")  # an unknown place, in the form of `_place`

ROUNDED = "cudnn in bf16"
"""Attention in f32, rounded to bf16 around the fused call."""

LEFT = "left as it is"
"""Replaces a setting: found, but without an alternative."""

KEEPS = (
    "a loss keeps values outside of itself, in a list or a variable; "
    "return them from it (has_aux=True)"
)
ASKS = "a loss asks for the numbers in its arguments, which jax does not know while it traces"
SHARDED = "explicit shardings of the program do not allow it"

_IMPORTING = "<frozen importlib"
_OURS = os.path.dirname(os.path.abspath(__file__))
_POSITION_OF_MASK = 3  # position among the arguments of attention, after the queries
_POSITION_OF_UNROLL = 5  # among the arguments of `jax.lax.scan`
_AFTER_UNROLL = ("_split_transpose",)
_PRECISION = "jax_default_matmul_precision"


class Alternatives:
    """The program's calls, and their replacements.

    Args:
        jax: the module, freshly imported.
        record: record of the capture, which gets the call sites.
        chosen: alternatives to make, each with ``kind``, ``where`` and ``value``.
        serves: name of a function whose alternatives are chosen later; empty: none.
    """

    def __init__(self, jax, record, chosen, serves=""):
        self._jax = jax
        self._folder = os.path.dirname(jax.__file__)
        self._record = record
        self._choose(chosen)
        self._serves = serves
        self._jitted = []  # what the program compiles under the name `serves`
        self._is_on = True
        # whether the program's own operations were replaced
        self._is_made_aside = False
        self._attend = None  # jax's own function of attention
        self._usual_checkpoint = jax.checkpoint
        self._replaced = Replaced()
        self._buffers = Buffers(jax)
        self._batches = batches.Batches(jax)

    def _choose(self, chosen):
        self._chosen = chosen
        self._settings = {
            (item["kind"], item["where"]): item["value"] for item in chosen
        }

    @contextlib.contextmanager
    def others(self, chosen):
        """Within the block, make other alternatives than those chosen at the start. jax forgets its
        traces.
        """
        self._choose(chosen)
        self._is_made_aside = False
        usual = self._replaced
        self._replaced = Replaced()
        self._set_precisions()
        self.use(True)
        try:
            yield
        finally:
            self._replaced.undo()
            self._replaced = usual

    def jitted(self, function):
        """Return how the program compiles the served function (see `Jitted`); None for another
        function.
        """
        for one in reversed(self._jitted):
            if one.function is function:
                return one
        return None

    def called(self, function, args, options):
        """Record the parameters of a function whose call passes one array several times, because
        none of them can be donated.
        """
        guarded(lambda: self.divided(args, options))
        count = Counter(self._buffers_in((args, options)))
        if all(times == 1 for times in count.values()):
            return
        given = inspect.signature(function).bind(*args, **options).arguments
        shared = []
        for name, value in given.items():
            if any(count[buffer] > 1 for buffer in self._buffers_in(value)):
                shared.append(name)
        self._note("shared", NOWHERE, _name_of(function), {"options": ",".join(shared)})

    def _buffers_in(self, tree):
        """What identifies the memory of each concrete array."""
        for leaf in self._jax.tree_util.tree_leaves(tree):
            if _is_array(self._jax, leaf):
                yield self._buffers.of(leaf)

    def divided(self, args, options):
        """Record how the arguments of a function are divided over devices."""
        self._batches.called(args, options)
        if self._batches.are_explicit:
            self._note("sharding", NOWHERE, batches.EXPLICIT, {})

    def why_not(self, error):
        """Say in a line why the chosen alternatives cannot be made."""
        return why_not(self._jax, error, self._chosen)

    def precision(self):
        """The precision to which alternatives round products; empty: no rounding."""
        for one in self._chosen:
            if one["kind"] in ("precision", "cast"):
                return one["value"]
        return ""

    def undo(self):
        """Restore jax, and clear what it has traced."""
        self._replaced.undo()
        self.use(False)

    def use(self, is_on):
        """Turn the alternatives on or off; jax forgets its traces."""
        self._is_on = is_on
        self._jax.clear_caches()

    def watch(self):
        """Replace functions of jax by functions that watch the calls."""
        jax = self._jax
        guarded(lambda: jax_private.hide_calls(_OURS))
        self._watch_checkpoints(jax)
        after_import("jax.ad_checkpoint", self._watch_checkpoints)
        replace = self._replaced.replace
        replace(jax, "device_put", self._buffers.watched(jax.device_put))
        replace(jax, "jit", self._jit(jax.jit))
        replace(jax.lax, "scan", self._scan(jax.lax.scan))
        constrain = jax.lax.with_sharding_constraint
        counting = self._batches.counting(constrain)
        replace(jax.lax, "with_sharding_constraint", counting)
        if hasattr(jax.nn, "dot_product_attention"):
            self._attend = jax.nn.dot_product_attention
            replace(jax.nn, "dot_product_attention", self._attention(self._attend))
        self._watch_precision()
        self._set_precisions()
        if self._in_graphs() or self._serves:
            self._watch_gradients()
        for item in self._chosen:
            if item["kind"] == "compare":
                self._compare(item["where"])

    def _compare(self, function):
        """Compare the values of a function at its first trace, then end the process."""

        def note(found):
            self._record.compared(found)
            os._exit(0)  # the process is not needed any more

        self.comparison(note, self.precision()).watch(function)

    def comparison(self, note, precision=""):
        """Return the comparison of values with and without the alternatives (see `Values`)."""
        is_made = lambda: not self._in_graphs() or self._is_made_aside
        made = Values(
            self._jax,
            self.use,
            note,
            precision,
            is_made=is_made,
            in_words=lambda error: in_words(self._jax, error, self._chosen),
        )
        made.see_gradients(self._replaced.replace)
        return made

    def _in_graphs(self):
        """Alternatives of the program's own operations, as (kind, setting)."""
        own = [item for item in self._chosen if item["where"] == BY_HAND]
        return [(item["kind"], item["value"]) for item in own]

    def _watch_gradients(self):
        """Replace the program's own operations in everything that it differentiates."""
        for name in ("grad", "value_and_grad"):
            usual = getattr(self._jax, name)
            self._replaced.replace(self._jax, name, self._rewriting(usual, _argnums_of))
        usual = self._rewriting(self._jax.vjp, lambda args, options: None)
        self._replaced.replace(self._jax, "vjp", usual)

    def _rewriting(self, usual, argnums_of):
        """Return a function of jax that differentiates what `_rewritten` makes of its argument.

        Args:
            argnums_of: returns the places of the differentiated arguments, from those of `usual`.
        """

        @functools.wraps(usual)
        def differentiate(fun, *args, **options):
            argnums = argnums_of(args, options)
            return usual(self._rewritten(fun, argnums), *args, **options)

        return differentiate

    def _rewritten(self, function, argnums):
        """Return a function in which the chosen alternatives replace operations at each call."""
        rewriter = Rewriter(self._jax, self._replacements)
        place = self._here()

        @functools.wraps(function)
        def rewritten(*args, **options):
            if not self._is_on:
                return function(*args, **options)
            call = function
            kinds = dict(self._in_graphs())
            if "cast" in kinds:
                del kinds["cast"]
                call = casts.casting(self._jax, function)
                self._is_made_aside |= SetAside.is_on()
                self._note("cast", place, BY_HAND, {})
            if kinds:
                call = rewriter(call, argnums)
            return call(*args, **options)

        return rewritten

    def _replacements(self, graph):
        """Return the replacements in a graph, for `Rewriter`."""
        find = {
            "attention": self._attentions,
            "lookup": self._lookups,
            "loss": self._losses,
            "cast": lambda graph, value: (),
        }
        found = {}
        for kind, value in self._in_graphs():
            for node, replacements, about in find[kind](graph, value):
                found.update(replacements)
                self._is_made_aside |= SetAside.is_on() and bool(replacements)
                place = guarded(lambda: self._place_of(node)) or NOWHERE
                now = BY_HAND if replacements else LEFT
                self._note(kind, place, now, about)
        return found

    def _attentions(self, graph, value):
        """Yield attention that the program writes itself: (node, replacements by node, about the
        site).
        """
        how, half = "cudnn", "bfloat16"
        if SetAside.is_on():  # values are compared without rounding
            how, half = "xla", "float32"
        rounded = half if value == ROUNDED else ""
        attend = functools.partial(self._attend, implementation=how)
        for node in graph.nodes:
            try:
                found = by_hand.find(self._jax, node, rounded)
            except by_hand.LeftError as error:
                yield node, {}, {"why": str(error)}
                continue
            if found is not None:
                made = fusing.replacement(self._jax, found, attend)
                describe = functools.partial(fused_call.described, self._jax, found)
                about = guarded(lambda: describe(graph)) or {}
                yield node, {node: made}, about

    def _lookups(self, graph, how):
        """Yield lookups whose gradient is a scatter, in the form of `_attentions`."""
        least = lookups.LEAST_ROWS
        if SetAside.is_on():
            least = lookups.LEAST_ROWS_SMALL
        for node in graph.nodes:
            found = lookups.find(self._jax, node, how, least)
            if found is not None:
                about = guarded(lambda: lookups.described(self._jax, node)) or {}
                yield node, {node: found}, about

    def _losses(self, graph, count):
        """Yield losses over a vocabulary, in the form of `_attentions`."""
        count = int(count)
        least = chunks.LEAST_WORDS
        if SetAside.is_on():
            count, least = chunks.COUNT_SMALL, chunks.LEAST_WORDS_SMALL
        found = chunks.find(self._jax, graph, count, self._usual_checkpoint, least)
        for product, replacements, said in found:
            about = {"note": said} if replacements else {"why": said}
            yield product, replacements, about

    def _note(self, kind, place, now, about):
        """Record a call site. What pgle itself traces has none."""
        if SetAside.is_on():
            return
        where, library, called = place
        site = {"kind": kind, "where": where, "now": now, "library": library}
        site["called"] = called
        site["form"] = guarded(lambda: _form_at(where)) or ""
        site.update(about)
        guarded(lambda: self._record.site(site))

    def _watch_checkpoints(self, module):
        """Replace the functions of a module that has them; an older one has in some releases."""
        for name in ("checkpoint", "remat"):
            usual = getattr(module, name, None)
            if usual is not None:
                self._replaced.replace(module, name, self._checkpoint(usual))

    def _checkpoint(self, usual):
        """Return a `jax.checkpoint` that records its policy, or takes the chosen one."""
        policies = self._jax.checkpoint_policies

        @functools.wraps(usual)
        def checkpoint(*args, **options):
            now = guarded(lambda: _name_in(policies, options.get("policy")))
            place = self._here()
            value = self._setting(place, "remat", now)
            if value:
                options["policy"] = getattr(policies, value)
            made = usual(*args, **options)
            return self._chosen_later(usual, made, place[0], args, options)

        return checkpoint

    def _chosen_later(self, usual, made, where, args, options):
        """Return a checkpointed function that chooses its policy when it is called, because a
        program may make it long before its step is traced.
        """
        if not self._serves or not where:
            return made

        @functools.wraps(made)
        def checkpointed(*given, **named):
            value = self._chosen_at("remat", where)
            if not value:
                return made(*given, **named)
            policy = getattr(self._jax.checkpoint_policies, value)
            return usual(*args, **dict(options, policy=policy))(*given, **named)

        return checkpointed

    def _scan(self, usual):
        """Return a `jax.lax.scan` that records how it unrolls, or takes the chosen alternatives."""

        @functools.wraps(usual)
        def scan(*args, **options):
            unroll = _given(args, _POSITION_OF_UNROLL, options, "unroll")
            if unroll is None:
                unroll = 1
            length = guarded(lambda: self._length_of(args, options)) or 0
            place = self._here()
            value = self._setting(place, "unroll", str(unroll), {"length": length})
            policy = self._chosen_at("checkpoint", place[0])
            if policy:
                args, options = self._checkpointed(args, options, policy)
            if value:
                more = args[_POSITION_OF_UNROLL + 1 :]
                args = args[:_POSITION_OF_UNROLL]
                options.update(zip(_AFTER_UNROLL, more), unroll=int(value))
            return self._scanned(usual, place, args, options)

        return scan

    def _scanned(self, usual, place, args, options):
        """Return the result of a scan; divide its carry like the batch if requested. Record how it
        can be divided, unless the body constrains values itself.
        """
        init = _given(args, 1, options, "init")
        division = guarded(lambda: self._batches.division(init))
        if division is None or not place[0]:
            return usual(*args, **options)
        is_asked = self._chosen_at("sharding", place[0]) is not None
        if is_asked and division.spec != batches.EXPLICIT:
            made = lambda body: self._batches.dividing(body, division)
            args, options = _with_body(args, options, made)
        before = self._batches.constrained
        found = usual(*args, **options)
        if self._batches.constrained == before:
            about = {"length": division.size, "options": division.written}
            about["call"] = guarded(lambda: _carry_of(args, options)) or ""
            if not hasattr(init, "shape"):
                about["form"] = "tree"
            self._note("sharding", place, division.spec, about)
        return found

    def _attention(self, usual):
        """Return jax's function of attention, which records its implementation, or takes the chosen
        one.
        """

        @functools.wraps(usual)
        def dot_product_attention(query, *args, **options):
            if str(getattr(query, "dtype", "")) not in HALF:
                return usual(query, *args, **options)
            now = options.get("implementation") or "xla"
            about = guarded(lambda: _mask_of(args, options)) or {}
            place = self._here()
            sharding = None
            if not place[1]:  # a library's edit writes no sharding
                sharding = divided_sharding(getattr(query, "aval", None))
            if sharding is not None:
                about["form"] = batches.EXPLICIT
            value = self._setting(place, "attention", now, about)
            if value:
                options["implementation"] = value
            if SetAside.is_on():  # cuDNN does not exist on CPUs
                options["implementation"] = "xla"
            made = usual(query, *args, **options)
            return divided_as(self._jax, made, sharding) if value else made

        return dot_product_attention

    def _jit(self, usual):
        """Return a `jax.jit` that records which function is compiled where, and donates what is
        requested.
        """

        @functools.wraps(usual)
        def jit(*args, **options):
            if not args and "fun" not in options:  # a decorator with settings
                return lambda given: jit(given, **options)
            function = _given(args, 0, options, "fun")
            name = guarded(lambda: _name_of(function))
            donated = guarded(lambda: _donated(function, options)) or []
            if name and name.isidentifier():  # `<lambda>` cannot identify a step
                self._note("jit", self._here(), name, {"options": ",".join(donated)})
            names = self._settings.get(("donation", name))
            if names:
                for given in ("donate_argnums", "donate_argnames"):
                    options.pop(given, None)  # jax takes either names or numbers
                options["donate_argnames"] = (*donated, *names.split(","))
            made = usual(*args, **options)
            if name and name == self._serves:
                self._jitted.append(Jitted(usual, made, args, options))
            return made

        return jit

    def _set_precisions(self):
        for item in self._chosen:
            if item["kind"] == "precision":
                self._set_precision(item["value"])

    def _watch_precision(self):
        """Record where the program sets the default precision of products."""
        jax = self._jax

        def noting(usual):
            @functools.wraps(usual)
            def noted(*args, **options):
                is_context = usual is set_context
                if is_context or args[:1] == (_PRECISION,):
                    now = str(args[-1]) if args else ""
                    call = "jax.default_matmul_precision" if is_context else ""
                    self._note("precision", self._here(), now, {"call": call})
                return usual(*args, **options)

            return noted

        set_context = jax.default_matmul_precision
        self._replaced.replace(jax, "default_matmul_precision", noting(set_context))
        self._replaced.replace(jax.config, "update", noting(jax.config.update))

    def _set_precision(self, value):
        """Set the default precision of products, and keep it even if the program sets another
        one.
        """
        config = self._jax.config
        usual = config.update
        before = _global_precision(config)

        def update(name, given):
            usual(name, value if name == _PRECISION else given)

        context = self._jax.default_matmul_precision
        within = lambda given: context(value)
        self._replaced.replace(self._jax, "default_matmul_precision", within)
        usual(_PRECISION, value)
        self._replaced.later(lambda: usual(_PRECISION, before))
        self._replaced.replace(config, "update", update)

    def _length_of(self, args, options):
        """The number of a scan's iterations."""
        given = _given(args, 3, options, "length")
        if given is not None:
            return int(given)
        leaves = self._jax.tree_util.tree_leaves(_given(args, 2, options, "xs"))
        return int(leaves[0].shape[0])

    def _checkpointed(self, args, options, policy):
        """Arguments of a scan whose body recomputes values for gradients."""
        keeps = getattr(self._jax.checkpoint_policies, policy)
        wrap = self._usual_checkpoint
        made = lambda body: wrap(body, prevent_cse=False, policy=keeps)
        return _with_body(args, options, made)

    def _here(self):
        """The program's place of the present call, as from `_place`; empty if unknown."""
        return guarded(lambda: _place(_calls(), self._folder)) or NOWHERE

    def _place_of(self, node):
        """The program's place of an operation, as from `_place`. Operations within jax's own jitted
        functions may only have frames of jax. Then the caller's frames are used.
        """
        frames = itertools.chain.from_iterable(map(jax_private.frames_of, node.eqns))
        return _place(frames, self._folder)

    def _setting(self, place, kind, now, about=None):
        """Return the setting for a call site instead of `now`; None: unchanged."""
        where = place[0]
        if not where:
            return None
        self._note(kind, place, now or "", about or {})
        return self._chosen_at(kind, where)

    def _chosen_at(self, kind, where):
        """The alternative to make at a place; None: none."""
        return self._settings.get((kind, where)) if self._is_on else None


def why_not(jax, error, chosen):
    """Say in a line why alternatives cannot be made."""
    return in_words(jax, error, chosen) or describe(error)


def in_words(jax, error, chosen):
    """Explain in pgle's words why the program's own operations cannot be replaced; empty if it has
    none. jax's words name operations that the user does not see.
    """
    if all(item["where"] != BY_HAND for item in chosen):
        return ""
    if isinstance(error, jax.errors.UnexpectedTracerError):
        return KEEPS
    if isinstance(error, jax.errors.ConcretizationTypeError):
        return ASKS
    return SHARDED if "ShardingType" in type(error).__name__ else ""


class Jitted:
    """A function as the program compiles it.

    Args:
        usual: `jax.jit`.
        made: its result.
        args, options: its arguments.
    """

    def __init__(self, usual, made, args, options):
        self._usual = usual
        self._args = args
        self._options = options
        self.made = made
        self.function = _given(args, 0, options, "fun")

    def instead(self, function):
        """Compile another function with the same settings."""
        options = dict(self._options)
        options.pop("fun", None)
        return self._usual(function, *self._args[1:], **options)


class Buffers:
    """Finds arrays that share memory, such as those that `jax.device_put` need not move. Addresses
    do not suffice, because placeholders of large results also share memory.
    """

    def __init__(self, jax):
        self._jax = jax
        # by an array's id: a reference to it, and the identity of its memory
        self._known = {}

    def of(self, leaf):
        """Identify the memory of an array."""
        known = self._known.get(id(leaf))
        if known is None:
            return id(leaf)
        reference, memory = known
        return memory if reference() is leaf else id(leaf)

    def watched(self, usual):
        """Return `jax.device_put` that records its results."""

        @functools.wraps(usual)
        def device_put(x, *args, **options):
            made = usual(x, *args, **options)
            guarded(lambda: self._note(x, made))
            return made

        return device_put

    def _note(self, given, made):
        leaves = self._jax.tree_util.tree_leaves
        for one, other in zip(leaves(given), leaves(made)):
            if one is not other and self._address(one) == self._address(other) != 0:
                memory = self.of(one)
                if memory == id(one):
                    memory = object()
                for array in (one, other):
                    self._known[id(array)] = (weakref.ref(array), memory)

    def _address(self, leaf):
        """Return the address of a concrete array; 0 for anything else."""
        jax = self._jax
        if not _is_array(jax, leaf):
            return 0
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
            return 0
        return leaf.addressable_shards[0].data.unsafe_buffer_pointer()


def _is_array(jax, leaf):
    """Whether a leaf is a concrete array, not one that jax traces with."""
    return isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)


class Replaced:
    """Replaced functions of jax, and how to restore them."""

    def __init__(self):
        self._undo = []

    def replace(self, owner, name, value):
        """Set an attribute of a module or an object."""
        if name in vars(owner):
            usual = vars(owner)[name]
            self.later(lambda: setattr(owner, name, usual))
        else:  # a class, or a function of a module, has it
            self.later(lambda: delattr(owner, name))
        setattr(owner, name, value)

    def later(self, back):
        """Call a function when everything is restored."""
        self._undo.append(back)

    def undo(self):
        """Restore everything, the last replacement first."""
        while self._undo:
            self._undo.pop()()


def _global_precision(config):
    """Return the precision set for all threads. A `with` block sets it only for its own thread."""
    found = []
    thread = threading.Thread(target=lambda: found.append(getattr(config, _PRECISION)))
    thread.start()
    thread.join()
    return found[0]


def _name_of(function):
    """The name of a function, which jax gives to its module; empty if it has none."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", "")


def _donated(function, options):
    """The parameters of a function that are donated, by name."""
    parameters = list(inspect.signature(function).parameters)
    found = []
    for option in ("donate_argnums", "donate_argnames"):
        given = options.get(option)
        several = given if isinstance(given, (tuple, list)) else [given]
        for one in several:
            if isinstance(one, str):
                found.append(one)
            elif one is not None:
                found.append(parameters[one])
    return found


def _given(args, place, options, name):
    """An argument that a call passes by position or name; None: it does not pass it."""
    return args[place] if len(args) > place else options.get(name)


def _form_at(where):
    """How a call is written: ``decorator`` without arguments, ``partial`` as a decorator; else
    empty.
    """
    file, _, line = where.rpartition(":")
    text = linecache.getline(file, int(line)).strip() if file else ""
    if not text.startswith("@"):
        return ""
    if "partial(" in text:
        return "partial"
    return "" if "(" in text else "decorator"


def _argnums_of(args, options):
    """Positions of the arguments that `jax.grad` differentiates."""
    given = args[0] if args else options.get("argnums", 0)
    is_one = hasattr(given, "__index__")  # numpy's integers have it, too
    return (int(given),) if is_one else tuple(map(int, given))


def _with_body(args, options, made):
    """Replace the body in a scan's arguments."""
    if args:
        return (made(args[0]), *args[1:]), options
    return args, dict(options, f=made(options["f"]))


def _carry_of(args, options):
    """The name of the carry in a scan's body; empty if the body does not name it."""
    body = args[0] if args else options["f"]
    first = next(iter(inspect.signature(body).parameters.values()), None)
    is_named = first is not None and first.kind in (
        first.POSITIONAL_ONLY,
        first.POSITIONAL_OR_KEYWORD,
    )
    return first.name if is_named else ""


def _name_in(policies, policy):
    """The public name of a policy; ``own`` for one made by the program, empty for none."""
    if policy is None:
        return ""
    names = (name for name in dir(policies) if getattr(policies, name) is policy)
    return next(names, "own")


def _mask_of(args, options):
    """Describe how a call of jax's attention is masked, as `fused_call.described` does."""
    mask = _given(args, _POSITION_OF_MASK, options, "mask")
    return {
        "mask": "" if mask is None else "own",
        "causal": bool(options.get("is_causal")),
    }


def _calls():
    """The calls that lead here, in the form of `jax_private.frames_of`."""
    frame = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back


def _place(calls, jax_folder):
    """Return (place, library file, library function). The place is the program's own line,
    ``train.py:41``, or a library's if it has none. The others name the library that calls jax for
    the program, such as ``flax/nnx/nn/attention.py``; else empty.
    """
    installed = library = called = ""
    for file, line, function in calls:
        if file.startswith(_IMPORTING):  # a library's own call, wherever it is imported
            return "", library, called
        path = os.path.abspath(file)
        if path.startswith((_OURS, jax_folder + os.sep)):
            continue
        if is_own(file):
            return "%s:%d" % (_shown(path), line), library, called
        if os.sep + "functools.py" in path or "contextlib" in path:
            continue
        if not installed and os.path.exists(path):
            installed = "%s:%d" % (path, line)
            library = _in_library(path)
        if library:
            called = function
    return installed, library, called


def _in_library(path):
    """A path relative to the folder of installed packages."""
    folder = packages_of(path)
    return os.path.relpath(path, folder).replace(os.sep, "/") if folder else ""


def _shown(path):
    """A path relative to the working directory, if it is below it."""
    here = os.getcwd() + os.sep
    return path[len(here) :] if path.startswith(here) else path
