"""The lossless loop: drafts proposed, verified and committed, round by round."""
