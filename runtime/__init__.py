"""Runs a bundle: backends, caches and the lossless decoding loop; needs no PyTorch."""
