"""What is known of XLA: modules, protos, flags, log lines, targets, hardware."""
