"""What this node does in the store about its blocks: claims, heartbeats and rounds, and giving back."""
