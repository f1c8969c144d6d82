"""Step times as JSON lines, each written whole at once: what a killed program leaves is valid."""

import json
import os


class StepWriter:
    """Appends to the rank's steps file, which is made with the first step.

    Args:
        path: of the file; with several processes of one rank, later ones get their pid into the name.
    """

    def __init__(self, path):
        self._wanted = path
        self.path = None
        self._file = None
        self.count = 0

    def write(self, number, seconds, *, profiled, compiled):
        """One step; marks are written only where they are true."""
        record = {"step": number, "step_time_s": round(seconds, 9)}
        if profiled:
            record["profiled"] = True
        if compiled:
            record["compiled"] = True
        if self._file is None:
            self._open()
        os.write(self._file, (json.dumps(record) + "\n").encode())
        self.count += 1

    def _open(self):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.path = self._wanted
        try:
            self._file = os.open(self.path, flags | os.O_EXCL, 0o644)
        except FileExistsError:
            root, suffix = os.path.splitext(self._wanted)
            self.path = "%s.pid%d%s" % (root, os.getpid(), suffix)
            self._file = os.open(self.path, flags, 0o644)
