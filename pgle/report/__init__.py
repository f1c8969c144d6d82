"""Renderers: result objects as text, JSON, HTML and markdown."""
