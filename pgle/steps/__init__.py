"""Step times: collect, summarise, compare."""
