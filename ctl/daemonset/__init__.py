"""hpn daemonset: what the containers of the DaemonSet run, and the unit that it leaves on a node."""
