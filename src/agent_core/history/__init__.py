"""Stored sessions as people read them: runs, sentences, figures, the tree, and the page."""
