"""The model that verifies: an exported graph or a Hugging Face model."""
