"""Labels of this node's Node object by the rails that it offers, so that pods can select nodes of one fabric."""
