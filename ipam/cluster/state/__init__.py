"""This node's file of its blocks."""
