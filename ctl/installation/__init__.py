"""hpn install and hpn uninstall: this program's file, its names and its units."""
