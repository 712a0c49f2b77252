"""Recorded cases: golden drafts, trajectories, the matrix of all of them."""
