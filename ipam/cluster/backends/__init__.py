"""The stores that the nodes share, and what speaks to their servers."""
