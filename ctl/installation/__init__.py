"""hpn install and hpn uninstall: this program's file, its names and its units, put on a node and taken away.

``places`` says what goes where, ``found`` what is there, ``plan`` what has to be done, and ``put`` does it.
"""
