"""hpn hints: environment variables for programs in a pod.

``workload`` describes the pod's attachments, ``libraries`` derives each library's variables, and ``command`` is the
command.
"""
