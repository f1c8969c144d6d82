"""A line of an xplane: the events of one stream or thread."""

from __future__ import annotations

from pgle.trace.xplane.planes import repeated, signed

_EVENTS = 4  # field of an XLine


class Line:
    """An XLine: its few fields and the positions of its events."""

    def __init__(self, data: bytes, start: int, end: int) -> None:
        self.identity = self.timestamp_ns = 0
        self.name = ""
        self.starts, self.ends, others = repeated(data, start, end, _EVENTS)
        for number, _, value, after, _ in others:
            if number == 1:
                self.identity = value
            elif number == 2:
                self.name = data[value:after].decode(errors="replace")
            elif number == 3:
                self.timestamp_ns = signed(value)
