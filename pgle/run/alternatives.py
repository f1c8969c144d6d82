"""The alternatives to a program: a table of their kinds.

The hook makes each of them while the program is captured again (`pgle_hook/alternatives.py`). The
user's files do not change.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from pgle.account.levers.algorithms import WITH_AXES
from pgle.errors import many, some
from pgle.files import read_bytes
from pgle.run.capture.captured import CallSite, module_name, partitioned
from pgle.run.edits import (
    ATTENTION_HOW,
    CAST_HOW,
    CHUNKS,
    CHUNKS_HOW,
    IN_BF16,
    IN_CHUNKS,
    LOOKUPS,
    OF_MESH,
    in_several_places,
    lookup_edit,
    lookup_how,
)
from pgle.run.libraries import ROUNDED, call_of, edit_of, in_library, is_in_words
from pgle.run.step_arguments import WholeBatch, state_of, whole_batch
from pgle.run.trainers import decided_by, settings_of
from pgle.xla.vendors import NVIDIA, Vendor

MOST_SITES = 3  # call sites of a kind that are tried

POLICIES = (
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "nothing_saveable",
    "everything_saveable",
)
"""Policies of `jax.checkpoint` to try. The last keeps all values, as without a checkpoint."""

DEFAULT_POLICY = "nothing_saveable"  # policy of `jax.checkpoint` if none is given

CHECKPOINTED = ("dots_with_no_batch_dims_saveable", DEFAULT_POLICY)
"""Policies of a new checkpoint where the program has none. One of them keeps the products."""

UNROLLED = (2, 4)  # unroll factors of a scan

PRECISION = "tensorfloat32"
"""The meaning of jax's ``bfloat16`` and ``default`` on a GPU (`jax.lax.Precision`)."""

HALVED = "BF16_BF16_F32"
"""A `jax.lax.DotAlgorithmPreset`: operands of f32 products are rounded to bf16, and sums are in
f32. The program's types do not change. XLA:GPU has it for CUDA from Ampere on (openxla/xla,
`algorithm_util.cc`).
"""

_AS_HALVED = (
    ", algorithm = <lhs_precision_type = bf16, rhs_precision_type = bf16, "
    "accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, "
    "num_primitive_operations = 1, allow_imprecise_accumulation = false>"
)
"""The same preset in StableHLO."""

CAST = "bfloat16"
"""The type that a loss computes in if what it takes is cast (`pgle_hook/casts.py`)."""

NO_LOOP = "all iterations are written out, which does not carry over to more of them"
SPREADS = "a NaN in the gradient of one row reaches every row"
STILL_READ = "only if nothing reads the old state after the call"

BY_HAND = "by hand"
"""Replaces a call site: the program's own operations, wherever it writes them."""

TREE = "tree"
"""The form of a scan's carry that is no single array."""

EXPLICIT = "explicit"
"""Replaces a setting of a scan or of a step: the mesh has explicit axes."""

PLACED = (
    "XLA computes the same values, but for the order of sums over devices; "
    "place the batch so, too, and each device loads its part alone"
)
"""A constraint changes where values are computed, not which (arXiv 2105.04663). Dividing the batch
only within the step still sends all of it to each device.
"""

EXPLICIT_AXES = (
    "the mesh has explicit axes; write jax.reshard where jax.typeof(x) of an activation lacks the "
    "axis of the batch"
)

JIT = "jit"
"""The kind of a call site that compiles a function. Its setting is the function's name."""

SHARED = "shared"
"""The kind of a call that passes one array several times, with names of parameters as options."""

_PRECISE = re.compile(r"dot_general .*precision = \[(?:HIGHEST|HIGH)\b.*xf32>")
"""A product of f32 arrays that does not use the Tensor Cores."""

_SINGLE = re.compile(
    r"(dot_general .*precision = \[DEFAULT, DEFAULT\])( : \(tensor<[^>]*f32>, tensor<[^>]*xf32>)"
)
"""A product of f32 arrays with default precision, in two parts."""

_OF_MATRICES = re.compile(
    r"dot_general [^,]*, [^,]*, contracting_dims = \[1\] x \[0\], precision = "
    r"\[DEFAULT, DEFAULT\] : \(tensor<\d+x\d+xf32>, tensor<\d+x\d+xf32>\)"
)
"""The same of two matrices, rows by columns (`pgle/account/levers/algorithms.py`)."""

_PARTITIONS = re.compile(r"mhlo\.num_partitions = (\d+)")

_CAN_BE_CAST = re.compile(
    _SINGLE.pattern
    + r"|stablehlo\.convolution\(.* : \(tensor<[^>]*xf32>, tensor<[^>]*xf32>\)"
)
"""The same, or a convolution of f32 arrays."""

_PRODUCT = re.compile(r"stablehlo\.(?:dot_general |convolution\()")
"""A product or a convolution of any type."""

_WRITTEN_OUT = re.compile(r"stablehlo\.dot_general .*batching_dims.*x(?:bf16|f16)>")
"""A product in half precision over batches and heads. Products of a loss have no such axes."""

_IN_F32 = re.compile(
    r"dot_general .*batching_dims.*\(tensor<[^>]*xf32>, tensor<[^>]*xf32>\)"
)
"""The same for f32 arrays."""

_OF_EACH = re.compile(r"dot_general .*batching_dims")
"""The same for any type."""

_LOOKED_UP = re.compile(
    r'"stablehlo\.scatter"(?:(?!stablehlo\.return)[\s\S])*?stablehlo\.add'
    r"(?:(?!stablehlo\.return)[\s\S])*?stablehlo\.return[^\n]*\n"
    r"[^\n]*-> tensor<(\d+)x\d+x(?:bf16|f16|f32)>"
)
"""A scatter that adds rows, with the number of rows: the gradient of a lookup."""

_LOGITS = re.compile(
    r"stablehlo\.dot_general .*-> tensor<(\d+)x(?:\d+x)*?(\d+)x[a-z]\w*>"
)
"""A product with its numbers of rows and columns. Either may be words: a table is the right or the
left factor.
"""

_POWERS = re.compile(r"stablehlo\.exponential .*tensor<(?:\d+x)+(\d+)x\w+>")
"""Exponentials with the size of their last axis. A step that drops the loss has no logarithm of
their sum: its gradient needs none.
"""

LEAST_ROWS = 1024  # as in `pgle_hook/lookups.py`
MOST_ONE_HOT = 1 << 18  # most rows of a table, as there
LEAST_WORDS = 4096  # as in `pgle_hook/chunks.py`


class Kind(StrEnum):
    """The part of a program that an alternative changes."""

    # of the batch, and of the carry of a scan as the batch is divided
    SHARDING = "sharding"
    ATTENTION = "attention"
    REMAT = "remat"
    CHECKPOINT = "checkpoint"  # of a scan's body without one
    UNROLL = "unroll"
    LOOKUP = "lookup"  # of rows; the gradient is a scatter
    LOSS = "loss"  # over many words
    PRECISION = "precision"
    CAST = "cast"  # of parameters and activations
    DONATION = "donation"
    WORDS = "words"  # of a known trainer's command
    VARIED = "varied"  # a placeholder of the command
    FLAGS = "flags"  # of XLA


CHANGES_VALUES = frozenset(
    (
        Kind.ATTENTION,
        Kind.LOOKUP,
        Kind.LOSS,
        Kind.PRECISION,
        Kind.CAST,
        Kind.VARIED,
    )
)
"""Kinds that may round differently. All others compute the same values."""

ROUNDING = frozenset((Kind.PRECISION, Kind.CAST))
"""Kinds that round the operands of products. Each has the full effect of the other."""

OF_COMMAND = frozenset((Kind.WORDS, Kind.VARIED))
"""Kinds that change words of the command. The hook does nothing for them."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One change of a program."""

    kind: Kind
    where: str  # ``train.py:41``; empty: unknown
    value: str  # the new setting
    edit: str  # code for the user to paste, or words if `is_in_words`
    rounds: bool = False  # whether words of a command change rounding
    made_at: str = ""  # what the hook gets instead of `where`; empty: `where`
    #: a clause: when the change holds, or its cost for other models or data
    limit: str = ""
    library: str = ""  # file of an installed library that makes the call
    # a sentence: where the code goes, and what its names mean; empty: it replaces the call
    how: str = ""
    # what the text of the module divides; the hook does nothing for it
    batch: WholeBatch | None = None

    @property
    def name(self) -> str:
        """A short name: ``unroll 2``."""
        if self.kind in OF_COMMAND:
            return self.value
        if self.kind == Kind.FLAGS:
            return f"flags: {self.where}"
        return f"{self.kind} {self.value}"

    @property
    def is_in_words(self) -> bool:
        """Whether the edit is only described: there is no code to paste."""
        return is_in_words(self.kind, self.library)

    @property
    def code(self) -> str:
        """The code for the user to paste; empty if there is none."""
        return "" if self.is_in_words else self.edit

    @property
    def what(self) -> str:
        """The object of the sentence that tells the user to write it."""
        return self.edit if self.is_in_words else "this"

    def at(self, sites: Sequence[CallSite]) -> Alternative:
        """Return the alternative with the place where it was found, if it was made in all possible
        places.
        """
        found = [
            site for site in sites if (site.kind, site.now) == (self.kind, BY_HAND)
        ]
        if self.where != BY_HAND or not found:
            return self
        edits: dict[str, list[str]] = {}
        for site in found:
            edit = edit_of(site, self.value, self._written_for(site))
            places = edits.setdefault(edit, [])
            places += [] if site.where in places else [site.where]
        where = ", ".join(dict.fromkeys(site.where for site in found))
        notes = dict.fromkeys(site.note for site in found if not site.library)
        hows = dict.fromkeys(filter(None, map(self._how_at, found)))
        limits = dict.fromkeys((self.limit, *_in_several_ways(edits), *notes))
        return replace(
            self,
            where=where,
            edit=in_several_places(edits),
            how="; ".join(hows),
            made_at=BY_HAND,
            limit="; ".join(filter(None, limits)),
            library=found[0].library,
        )

    def _written_for(self, site: CallSite) -> str:
        """Return the text that replaces what was found at a site."""
        if self.kind == Kind.LOOKUP and site.call:
            return lookup_edit(self.value, site.call, site.options)
        return site.call or self.edit

    def _how_at(self, site: CallSite) -> str:
        """Say where the code goes that replaces what was found at a site."""
        if self.kind == Kind.ATTENTION and site.library:
            return ""
        how = self.how
        if self.kind == Kind.LOOKUP and site.call:
            how = lookup_how(site.call)
        return ". ".join(filter(None, (how, in_library(site))))

    @property
    def switch(self) -> Mapping[str, str]:
        """The instruction to the hook."""
        where = self.made_at or self.where
        return {"kind": self.kind, "where": where, "value": self.value}

    @property
    def changes_values(self) -> bool:
        """Whether the alternative may change results."""
        return self.rounds or self.kind in CHANGES_VALUES

    @property
    def is_same_call(self) -> bool:
        """Whether it is a call of the program with another kernel, which CPUs lack."""
        is_by_hand = BY_HAND in (self.where, self.made_at)
        return self.kind == Kind.ATTENTION and not is_by_hand


@dataclass(frozen=True)
class Written:
    """A program as written: its calls, and the text of its step's module."""

    sites: Sequence[CallSite]
    module: Path
    text: str
    words: Sequence[str] = ()  # words of its command
    is_too_large: bool = False  # for the GPU's memory
    # whether devices repeat each other's work, or loops move activations between devices
    is_undivided: bool = False
    # values of its placeholders; the unchanged program has the first of each
    vary: Mapping[str, Sequence[str]] = field(default_factory=dict)
    vendor: Vendor = NVIDIA  # of the GPUs
    # functions executed as often as the step, which may use its state
    alongside: Sequence[str] = ()

    def of(self, kind: Kind) -> Sequence[CallSite]:
        """Return the first call sites of a kind; none if words of the command decide that kind."""
        return list(self._places(kind).values())[:MOST_SITES]

    def _places(self, kind: Kind) -> Mapping[str, CallSite]:
        if kind in decided_by(self.words):
            return {}
        return {site.where: site for site in self.sites if site.kind == kind}

    @property
    def left_out(self) -> str:
        """The alternatives that are not tried, with reasons."""
        left: list[str] = []
        if not self.vendor.fused_attention and any(_unfused(self)):
            left.append(
                f"attention is not tried: {no_fused_attention(self.vendor)}; try Pallas "
                "(jax.experimental.pallas.ops.gpu.attention) or Transformer Engine"
            )
        if any(_explicit(self)):
            left.append(f"sharding is not tried: {EXPLICIT_AXES}")
        if why := self.why_not_donated:
            of = " of some of the state" if self.donated else ""
            left.append(f"donation{of} is not tried: {why}")
        return "; ".join(left)

    @property
    def why_not_donated(self) -> str:
        """Why some of the state is not donated; empty if it can be."""
        state = state_of(self.text)
        if state and self.alongside:
            return f"{some(self.alongside, 2)} may use the same state after the step"
        shared = [name for name in state if name in self._shared]
        if not shared:
            return ""
        return f"one array is passed several times ({some(shared, 3)})"

    @property
    def donated(self) -> Sequence[str]:
        """Parameters of the step that can be donated."""
        if self.alongside:
            return []
        return [name for name in state_of(self.text) if name not in self._shared]

    @property
    def _shared(self) -> Collection[str]:
        """Parameters of the step whose array is also passed a second time."""
        called = (SHARED, self.function)
        given = (site for site in self.sites if (site.kind, site.now) == called)
        return ",".join(site.options for site in given).split(",")

    @property
    def function(self) -> str:
        """The name of the step's function."""
        return module_name(self.module).removeprefix("jit_")

    def jitted(self, function: str) -> CallSite | None:
        """Return the program's own `jax.jit` call for a function. None if there is none, or if a
        library makes it: `jax.jit` instead of `flax.nnx.jit` loses the step's changes to its
        models.
        """
        found = [
            site for site in self.sites if (site.kind, site.now) == (JIT, function)
        ]
        is_own = bool(found) and not any(site.library for site in found)
        return found[0] if is_own else None

    def left_sites(self) -> list[CallSite]:
        """Call sites that are not tried."""
        left: list[CallSite] = []
        for kind in Kind:
            left += list(self._places(kind).values())[MOST_SITES:]
        return left


def _in_several_ways(edits: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield a warning for each place that has several edits, such as a function for attention
    that is called with two masks. One of its edits alone is wrong for the other calls.

    Args:
        edits: places by the edit that each needs.
    """
    every = [*itertools.chain.from_iterable(edits.values())]
    for place in dict.fromkeys(every):
        if every.count(place) > 1:
            yield f"{place} runs in several ways: write each edit for its own calls"


def no_fused_attention(vendor: Vendor) -> str:
    """Say why attention is not tried on the vendor's GPUs; empty if it is."""
    if vendor.fused_attention:
        return ""
    return f"jax has no fused kernel of its own for {vendor.name}"


def text_of(module: Path) -> str:
    """Read a module, which is StableHLO as jax dumps it."""
    return read_bytes(module).decode(errors="replace")


def alternatives(program: Written) -> list[Alternative]:
    """Yield all alternatives of a program, in the order of their trials."""
    libraries = {(site.kind, site.where): site.library for site in program.sites}
    found: list[Alternative] = []
    for make in MAKERS:
        for change in make(program):
            library = libraries.get((change.kind, change.where), "")
            found.append(replace(change, library=library))
    return found


def _shardings(program: Written) -> Iterator[Alternative]:
    if not program.is_undivided:
        return
    for site in program.of(Kind.SHARDING):
        if site.now != EXPLICIT:
            carry = site.call or "x"
            edit = f"{carry} = {_divided_carry(site, carry)}"
            how = f"Write this first in the body of the scan: {carry} is its carry"
            if "mesh" in site.options:
                how = f"{how}, {OF_MESH}"
            yield Alternative(Kind.SHARDING, site.where, site.now, edit, how=how)


def _divided_carry(site: CallSite, carry: str) -> str:
    """Return the code that divides a scan's carry, which is an array or holds some."""
    constrain = "jax.lax.with_sharding_constraint"
    if site.form != TREE:
        return f"{constrain}({carry}, {site.options})"
    is_activation = f"jnp.ndim(a) > 1 and len(a) == {site.length}"
    divided = f"{constrain}(a, {site.options}) if {is_activation} else a"
    return f"jax.tree.map(lambda a: {divided}, {carry})"


def _batches(program: Written) -> Iterator[Alternative]:
    is_as_compiled = partitioned(program.module) == program.module
    batch = whole_batch(program.text) if program.is_undivided else None
    if batch is None or not is_as_compiled or any(_explicit(program)):
        return
    compiled_at = program.jitted(program.function)
    where = "" if compiled_at is None else compiled_at.where
    yield Alternative(
        Kind.SHARDING,
        where or program.function,
        f"batch {batch.spec}",
        batch.edit,
        how=f"Write this first in {program.function}: {OF_MESH}",
        limit=PLACED,
        batch=batch,
    )


def _explicit(program: Written) -> Iterator[CallSite]:
    """Yield places where values could be divided if the mesh had no explicit axes."""
    for site in program.of(Kind.SHARDING):
        if program.is_undivided and site.now == EXPLICIT:
            yield site


def _attentions(program: Written) -> Iterator[Alternative]:
    how = program.vendor.fused_attention
    if not how:
        return
    usual = f'jax.nn.dot_product_attention(…, implementation="{how}")'
    sites = {site.where: site for site in program.of(Kind.ATTENTION)}
    for where in _unfused(program):
        if where in sites:
            edit = edit_of(sites[where], how, usual)
            if sites[where].form == EXPLICIT:
                edit = f"jax.reshard({edit}, jax.typeof(q).sharding)"
            yield Alternative(Kind.ATTENTION, where, how, edit)
        else:
            yield Alternative(Kind.ATTENTION, where, how, usual, how=ATTENTION_HOW)
    fused = (how, BY_HAND)
    if how == NVIDIA.fused_attention and _may_attend_by_hand(program, fused, _IN_F32):
        limit = "compare the loss: attention keeps 7 bits of f32"
        yield Alternative(
            Kind.ATTENTION, BY_HAND, ROUNDED, usual, limit=limit, how=ATTENTION_HOW
        )


def _unfused(program: Written) -> Iterator[str]:
    """Yield call sites that may have unfused attention."""
    fused = (program.vendor.fused_attention, BY_HAND)
    for site in program.of(Kind.ATTENTION):
        if site.now not in fused:
            yield site.where
    if _may_attend_by_hand(program, fused, _WRITTEN_OUT):
        yield BY_HAND


def _lookups(program: Written) -> Iterator[Alternative]:
    tables = list(map(int, _LOOKED_UP.findall(program.text)))
    for how in LOOKUPS:
        is_product = how == "one_hot"
        most_rows = MOST_ONE_HOT if is_product else math.inf
        if any(LEAST_ROWS <= rows <= most_rows for rows in tables):
            limit = SPREADS if is_product else ""
            edit = lookup_edit(how)
            yield Alternative(
                Kind.LOOKUP, BY_HAND, how, edit, limit=limit, how=lookup_how()
            )


def _losses(program: Written) -> Iterator[Alternative]:
    pairs = _LOGITS.findall(program.text)
    words = set(map(int, itertools.chain.from_iterable(pairs)))
    words.intersection_update(map(int, _POWERS.findall(program.text)))
    if max(words, default=0) >= LEAST_WORDS:
        yield Alternative(Kind.LOSS, BY_HAND, str(CHUNKS), IN_CHUNKS, how=CHUNKS_HOW)


def _may_attend_by_hand(
    program: Written, fused: Collection[str], like: re.Pattern[str]
) -> bool:
    """Whether the module may contain attention besides the known calls. If a known call is not
    fused, it looks the same in a module, so the answer is then False.

    Args:
        like: what its products look like.
    """
    if Kind.ATTENTION in decided_by(program.words):
        return False
    kernels = {site.now for site in program.sites if site.kind == Kind.ATTENTION}
    return not kernels - {*fused} and _surround_exponential(program.text, like)


def _surround_exponential(text: str, product: re.Pattern[str]) -> bool:
    """Whether products over batches and heads come before and after an exponential, as in
    attention. The first product has a given type.
    """
    first = product.search(text)
    if first is None:
        return False
    *_, last = _OF_EACH.finditer(text)
    return "stablehlo.exponential" in text[first.end() : last.start()]


def _remats(program: Written) -> Iterator[Alternative]:
    for site in program.of(Kind.REMAT):
        for policy in POLICIES:
            if policy == (site.now or DEFAULT_POLICY):
                continue
            options = f"policy=jax.checkpoint_policies.{policy}"
            usual = call_of(site, "jax.checkpoint", options)
            edit = edit_of(site, policy, usual)
            yield Alternative(Kind.REMAT, site.where, policy, edit)


def _checkpoints(program: Written) -> Iterator[Alternative]:
    if not program.is_too_large or program.of(Kind.REMAT):
        return
    for site in program.of(Kind.UNROLL):
        for policy in CHECKPOINTED:
            edit = (
                "jax.lax.scan(jax.checkpoint(…, prevent_cse=False, "
                f"policy=jax.checkpoint_policies.{policy}), …)"
            )
            yield Alternative(Kind.CHECKPOINT, site.where, policy, edit)


def _unrolls(program: Written) -> Iterator[Alternative]:
    for site in program.of(Kind.UNROLL):
        for count in UNROLLED:
            if site.now == "1" and site.length >= count:
                usual = f"jax.lax.scan(…, unroll={count})"
                edit = edit_of(site, str(count), usual)
                # XLA removes a loop of one iteration
                limit = NO_LOOP if site.length < 2 * count else ""
                yield Alternative(
                    Kind.UNROLL, site.where, str(count), edit, limit=limit
                )


def _precisions(program: Written) -> Iterator[Alternative]:
    if _PRECISE.search(program.text):
        yield _with_precision(program, PRECISION)
    if _has_mostly(program, _SINGLE) and program.vendor is NVIDIA:
        halved = _with_precision(program, HALVED)
        limit = f"compare the loss: products keep 7 bits of f32{_dropped(program)}"
        yield replace(halved, limit=limit)


def _dropped(program: Written) -> str:
    """Say which products do not keep the algorithm `HALVED`; empty if all keep it."""
    partitions = _PARTITIONS.search(program.text)
    if partitions is None or int(partitions[1]) < 2:
        return ""
    dropped = len(_OF_MATRICES.findall(program.text))
    if not dropped:
        return ""
    every = many(len(_SINGLE.findall(program.text)), "product")
    return f"; of {every}, {dropped:,} multiply two matrices. {WITH_AXES.rstrip('.')}"


def _has_mostly(program: Written, wanted: re.Pattern[str]) -> bool:
    """Whether most products and convolutions are of the wanted kind."""
    every = _PRODUCT.findall(program.text)
    return 2 * len(wanted.findall(program.text)) > len(every)


def _casts(program: Written) -> Iterator[Alternative]:
    if _has_mostly(program, _CAN_BE_CAST):
        limit = "compare the loss: all of it keeps 7 bits of f32"
        yield Alternative(Kind.CAST, BY_HAND, CAST, IN_BF16, limit=limit, how=CAST_HOW)


def _with_precision(program: Written, value: str) -> Alternative:
    """Set the default precision of products, wherever the program sets it."""
    usual = f'jax.config.update("jax_default_matmul_precision", "{value}")'
    edits: dict[str, list[str]] = {}
    places: dict[str, None] = {}
    for site in program.sites:
        if site.kind == Kind.PRECISION and site.where and site.where not in places:
            edit = f'{site.call}("{value}")' if site.call else usual
            edits.setdefault(edit, []).append(site.where)
            places[site.where] = None
    edit = in_several_places(edits) if edits else usual
    return Alternative(Kind.PRECISION, ", ".join(places), value, edit)


def _donations(program: Written) -> Iterator[Alternative]:
    names = program.donated
    function = program.function
    compiled_at = program.jitted(function)
    if not names or compiled_at is None:
        return
    every = [*filter(None, compiled_at.options.split(",")), *names]
    listed = ", ".join(f'"{name}"' for name in every)
    donated = f"donate_argnames=[{listed}]"
    edit = call_of(compiled_at, "jax.jit", donated)
    how = ""
    if not compiled_at.where:
        edit = donated
        how = f"Pass this to the call that compiles {function}"
    limit = STILL_READ
    if compiled_at.options:
        limit = f"{limit}; in place of what it donates now"
    where = compiled_at.where or function
    yield Alternative(
        Kind.DONATION,
        where,
        ",".join(names),
        edit,
        made_at=function,
        limit=limit,
        how=how,
    )


def _words(program: Written) -> Iterator[Alternative]:
    for setting in settings_of(program.words, program.vendor):
        yield Alternative(
            Kind.WORDS, setting.name, setting.text, setting.text, setting.rounds
        )


def _varied(program: Written) -> Iterator[Alternative]:
    for name, values in program.vary.items():
        for value in values[1:]:
            setting = f"{name}={value}"
            yield Alternative(Kind.VARIED, name, setting, setting)


MAKERS: Sequence[Callable[[Written], Iterator[Alternative]]] = (
    _varied,
    _words,
    _batches,
    _shardings,
    _attentions,
    _losses,
    _lookups,
    _remats,
    _checkpoints,
    _unrolls,
    _precisions,
    _casts,
    _donations,
)
"""A row for each kind but `FLAGS`, which `advise.flag_settings` makes once the best step is known.

The hook makes the others, by a switch in `pgle_hook/alternatives.py`; but for `OF_COMMAND`.
"""


def halved(text: str) -> str:
    """A module, StableHLO as jax dumps it, whose f32 products of default precision are `HALVED`."""
    return _SINGLE.sub(rf"\1{_AS_HALVED}\2", text)
