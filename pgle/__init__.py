"""pgle: give XLA's latency-hiding scheduler measured costs, and prove that it used them."""

__version__ = "0.1.0"
