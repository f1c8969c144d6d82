"""Nsight Systems exports as a Trace."""

REPORT_MAGIC = b"NVIDIA Tegra Profiler Report"  # how a ``.nsys-rep`` begins
# how an export begins that is not of tables in files of their own
SQLITE_MAGIC = b"SQLite format 3\0"
