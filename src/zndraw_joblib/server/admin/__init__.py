"""The operators' part of the server: overview, statistics, searches, bulk actions, lists, audit."""
