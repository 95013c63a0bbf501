"""What this node has of shared networks, on its disk."""
