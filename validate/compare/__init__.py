"""What in a bundle differs from its checkpoint now, and tables of it for people."""
