"""hpn hints: what programs in a pod should be told of its interfaces.

``workload`` is what ADD made, ``libraries`` what each library wants to know of it, ``lines`` how that is written, and
``command`` the command.
"""
