"""Providers: requests to remote data sources, uploads of their results, the result cache."""
