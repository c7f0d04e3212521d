"""What operators see and do: overview, statistics, searches, bulk actions, lists, audit."""
