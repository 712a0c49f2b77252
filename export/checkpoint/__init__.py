"""A folder of weights to a checked model whose tensors are not read yet; loads no PyTorch."""
