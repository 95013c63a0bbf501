"""The switch's port at the other end of each PF, by LLDP (IEEE 802.1AB-2016).  ``hpn node`` only hears, and sends
nothing."""
