"""What the graphs store of the weights, where, and in how many bits."""
