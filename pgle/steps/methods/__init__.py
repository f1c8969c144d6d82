"""The statistical methods of a comparison, one file each behind `pgle.steps.methods.method.Method`."""
