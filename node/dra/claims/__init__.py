"""Claims of the node's devices: what kubelet has prepared, and what their containers get."""
