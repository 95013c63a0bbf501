"""What blocks and their documents are, and who may have which.  Pure: nothing here reads or writes."""
