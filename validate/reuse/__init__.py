"""`validate reuse`: prompts behind other texts have the ids of prompts computed whole."""
