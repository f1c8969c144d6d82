"""The search for flags: what is tried, in which worlds it is judged, and when it is accepted."""
