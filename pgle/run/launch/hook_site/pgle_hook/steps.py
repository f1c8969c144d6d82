"""Step times as JSON lines, whole lines at once: what a killed program leaves is valid."""

import json
import os


class StepWriter:
    """Appends to the rank's steps file, which is made with the first step.

    Steps are noted by the program's thread, which then goes on at once, and written by the hook's.

    Args:
        path: of the file; with several processes of one rank, later ones get their pid into the name.
    """

    def __init__(self, path):
        self._wanted = path
        self.path = None
        self._file = None
        self._noted = []

    def note(self, number, seconds, profiled, compiled):
        """One step, to be written soon."""
        self._noted.append((number, seconds, profiled, compiled))

    def take(self):
        """What was noted since the last time; to be called under the lock that `note` is called under."""
        noted, self._noted = self._noted, []
        return noted

    def write(self, noted):
        """Write steps; marks only where they are true."""
        if not noted:
            return
        lines = []
        for number, seconds, profiled, compiled in noted:
            record = {"step": number, "step_time_s": round(seconds, 9)}
            if profiled:
                record["profiled"] = True
            if compiled:
                record["compiled"] = True
            lines.append(json.dumps(record) + "\n")
        if self._file is None:
            self._open()
        os.write(self._file, "".join(lines).encode())

    def _open(self):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.path = self._wanted
        try:
            self._file = os.open(self.path, flags | os.O_EXCL, 0o644)
        except FileExistsError:
            root, suffix = os.path.splitext(self._wanted)
            self.path = "%s.pid%d%s" % (root, os.getpid(), suffix)
            self._file = os.open(self.path, flags, 0o644)
