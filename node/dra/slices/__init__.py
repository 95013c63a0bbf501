"""The node's ResourceSlices: which devices they have, and when and how the API server gets them."""
