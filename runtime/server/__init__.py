"""A server for one person: the schema that clients of OpenAI's API speak, and a page."""
