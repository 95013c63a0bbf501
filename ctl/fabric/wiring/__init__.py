"""``hpn fabric wiring``: at which leaf each node's rails are, and where a node differs from the others."""
