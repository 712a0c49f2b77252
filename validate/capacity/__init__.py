"""`plan`: what a pair takes and where it fits, before anything is exported."""
