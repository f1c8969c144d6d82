"""Nsight Systems exports as a Trace."""

REPORT_MAGIC = b"NVIDIA Tegra Profiler Report"  # the first bytes of a ``.nsys-rep``
# the first bytes of an SQLite export
SQLITE_MAGIC = b"SQLite format 3\0"
