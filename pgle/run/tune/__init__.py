"""The search for flags against the outside world: compilations, the record of trials, the proof."""
