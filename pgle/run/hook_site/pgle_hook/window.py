"""Which part of the program is traced: ``auto``, ``steps:A-B`` or ``seconds:N``."""

WARM_STEPS = 3
"""auto: steps without compilation before the window opens."""

TRACED_STEPS = 5
"""auto: steps in the window; warm-up and a truncated last step are told from them later."""

QUIET_S = 3.0
"""Without step marks: the program has settled when it has compiled nothing for so long."""

TRACED_S = 5.0
"""Without step marks: length of the window."""


class Window:
    """Decides when the profiler opens and closes; opens once.

    Args:
        text: as the user gave it; checked by the launcher.
    """

    def __init__(self, text):
        kind, _, rest = text.partition(":")
        self.kind = kind
        self.first = self.last = None
        self.seconds = TRACED_S
        if kind == "steps":
            first, _, last = rest.partition("-")
            self.first, self.last = int(first), int(last or first)
        elif kind == "seconds":
            self.seconds = float(rest)
        self.state = "waiting" if kind in ("auto", "steps", "seconds") else "done"
        self._quiet_steps = 0
        self._seen = None
        self._traced = []
        self._opened_at = None
        self._why_not = "" if self.state == "waiting" else "not asked for"

    def on_step(self, number, compiled):
        """A step begins; `compiled`: something was compiled during the one before. Returns open, close or None."""
        self._seen = (self._seen[0] if self._seen else number, number)
        if self.state == "open" and self.kind != "seconds":
            over = number > self.last if self.kind == "steps" else len(self._traced) >= TRACED_STEPS
            if over:
                self.state = "done"
                return "close"
            self._traced.append(number)
            return None
        if self.state != "waiting":
            return None
        self._quiet_steps = 0 if compiled else self._quiet_steps + 1
        ready = self.first <= number <= self.last if self.kind == "steps" else self._quiet_steps >= WARM_STEPS
        if not ready or self.kind == "seconds":
            return None
        self.state = "open"
        self._traced.append(number)
        return "open"

    def on_time(self, now, last_compile, compiles, source):
        """Time passes; only windows by time and programs without step marks look at it."""
        by_time = self.kind == "seconds" or (self.kind == "auto" and source is None)
        if not by_time:
            return None
        if self.state == "waiting" and compiles and now - last_compile > QUIET_S:
            self.state = "open"
            self._opened_at = now
            return "open"
        if self.state == "open" and self._opened_at is not None and now - self._opened_at > self.seconds:
            self.state = "done"
            return "close"
        return None

    def give_up(self, why, undo=False):
        """Do not open any more; `undo`: what was just opened does not count."""
        if undo:
            self._traced, self._opened_at = [], None
        if undo or self.state != "done":
            self._why_not = why if not self._traced and self._opened_at is None else self._why_not
            self.state = "done"

    def describe(self):
        """What was traced, for the facts file."""
        if self._traced:
            return {"steps": [self._traced[0], self._traced[-1]]}
        if self._opened_at is not None:
            return {"seconds": self.seconds}
        return {"none": self._why_not or self._never()}

    def _never(self):
        """Why a window did not open until the end."""
        if self.kind == "steps" and self._seen:
            return "steps %d-%d never began; the program went from %d to %d" % (self.first, self.last, *self._seen)
        if self.kind == "steps" or not self._seen:
            return "the program marked no steps, and ended less than %g s after its last compilation" % QUIET_S
        return "the program ended after steps %d to %d, before %d steps without compilation" % (
            *self._seen,
            WARM_STEPS + 1,
        )
