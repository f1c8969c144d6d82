"""Step times: a comparison as text, JSON, page and for continuous integration; a history."""
