"""Costs as text and JSON: taken from traces, shown, compared, held against a module, merged and filled."""
