"""Parts that some methods share."""
