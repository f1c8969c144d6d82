"""Timelines of schedules and traces: one scene, as a page that moves, a still picture, text, or a Perfetto trace."""
