"""`validate bisect`: the first value of a graph that differs from the module."""
