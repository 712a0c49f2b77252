"""`doctor`: why drafts are not accepted."""
