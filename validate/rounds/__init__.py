"""Which rounds are drafted for a comparison, and by what."""
