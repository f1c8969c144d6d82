"""What pages are made of: one palette, one style, charts, and a page's parts as HTML, Markdown or
text.
"""
