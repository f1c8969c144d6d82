"""One program at many sizes: which trials, what a row holds, where it breaks. Pure."""
