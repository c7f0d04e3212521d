"""Publish/subscribe between the replicas of a server."""
