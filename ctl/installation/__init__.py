"""hpn install and hpn uninstall: this program's file, its names and its units, put on a node and removed.

``layout`` names what goes where, ``plan`` compares that with the disk, ``files`` and ``systemd`` carry it out, and
``state`` reads what attachments need.
"""
