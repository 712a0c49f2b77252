"""`validate parity` and `validate ranges`: every graph against the module."""
