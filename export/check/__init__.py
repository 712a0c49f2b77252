"""The gate of an export: the graph on disk against the module and the checkpoint."""
