"""config.json of every publisher to checked facts; loads no PyTorch."""
