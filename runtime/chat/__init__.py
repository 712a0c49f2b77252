"""A conversation with a bundle, on a terminal or from a script of lines."""
