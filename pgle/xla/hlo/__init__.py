"""HLO modules: read, named, and as LHS saw them."""
