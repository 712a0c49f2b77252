"""What the configs of targets say whose layers share little with those of other decoders."""
