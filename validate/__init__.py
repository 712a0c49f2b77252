"""Says whether a bundle is right and what it gains; may use every stage and is used by none."""
