"""This node's requests to the backend about its blocks: claims, heartbeats, rounds and releases."""
