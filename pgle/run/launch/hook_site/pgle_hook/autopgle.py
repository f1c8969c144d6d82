"""What JAX's AutoPGLE does in this program: recompilations, cache hits, and functions it cannot reach."""

import re

from pgle_hook import guarded, jax_private

# Wordings of jax 0.4.31 to 0.12.
_RECOMPILED = re.compile(r"Compiling module (\S+) with FDO profile of length (\d+)")
_LOADED = re.compile(r"PGLE-optimized (\S+) loaded from compilation cache")
_MISSED = re.compile(r"PERSISTENT CACHE MISS for PGLE-optimized (\S+)")
_HIT = re.compile(r"Persistent compilation cache hit for '(\S+)'")


class AutoPgle:
    """Listens to jax's compiler without changing what it prints.

    Args:
        facts: where what was seen is noted, under ``auto_pgle``.
        jax: the module.
    """

    def __init__(self, facts, jax):
        self._facts = facts
        self.seen = {"recompiled": {}, "loaded": [], "missed": [], "hits": [], "found_optimised": 0, "ahead_of_time": 0}
        facts.set("auto_pgle", self.seen)
        jax_private.compiler_messages(lambda text: guarded(lambda: self.note(text)))
        jax_private.optimised_found(self._found)
        self._count_ahead_of_time(jax)

    def note(self, message):
        """Take what a message of the compiler says."""
        found = _RECOMPILED.search(message)
        if found:
            self.seen["recompiled"][found.group(1)] = int(found.group(2))
        for pattern, name in ((_LOADED, "loaded"), (_MISSED, "missed"), (_HIT, "hits")):
            found = pattern.search(message)
            if found and found.group(1) not in self.seen[name]:
                self.seen[name].append(found.group(1))
        self._facts.stale = True

    def _found(self):
        self.seen["found_optimised"] += 1

    def _count_ahead_of_time(self, jax):
        """Functions compiled by ``lower().compile()`` are never traced by AutoPGLE."""
        lowered = getattr(getattr(jax, "stages", None), "Lowered", None)
        if lowered is None:
            return
        compile = lowered.compile

        def new_compile(this, *args, **kwargs):
            self.seen["ahead_of_time"] += 1
            return compile(this, *args, **kwargs)

        lowered.compile = new_compile
