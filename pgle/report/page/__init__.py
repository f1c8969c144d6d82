"""The parts of pages: one palette, one style, charts, and the renderers for HTML, Markdown and
text.
"""
