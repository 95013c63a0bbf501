"""What blocks and their documents are, and which node may own which.  Pure: nothing here reads or writes."""
