"""HLO modules: reading them, their names, and their form in LHS."""
