"""`report`: one HTML file about a bundle."""
