"""Facts about XLA: modules, protos, flags, log lines, targets, hardware."""
