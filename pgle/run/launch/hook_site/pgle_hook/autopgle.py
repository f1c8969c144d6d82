"""What JAX's AutoPGLE does in this program: recompilations, cache hits, and functions it cannot reach."""

import re

from pgle_hook import guarded, jax_private


class AutoPgle:
    """Listens to jax's compiler without changing what it prints.

    Args:
        facts: where what was seen is noted, under ``auto_pgle``.
        jax: the module.
        wordings: regular expressions of its messages: ``recompiled`` (module, bytes of costs); ``loaded``, ``missed``
            and ``hits`` (module).
    """

    def __init__(self, facts, jax, wordings):
        self._facts = facts
        self._wordings = wordings
        self.seen = {"recompiled": {}, "loaded": [], "missed": [], "hits": [], "found_optimised": 0, "ahead_of_time": 0}
        facts.set("auto_pgle", self.seen)
        jax_private.compiler_messages(lambda text: guarded(lambda: self.note(text)))
        jax_private.optimised_found(self._found)
        self._count_ahead_of_time(jax)

    def note(self, message):
        """Take what a message of the compiler says."""
        for name, pattern in self._wordings.items():
            found = re.search(pattern, message)
            if found and name == "recompiled":
                self.seen[name][found.group(1)] = int(found.group(2))
            elif found and found.group(1) not in self.seen[name]:
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
