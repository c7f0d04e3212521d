"""The queue: tasks, claims, reports, jobs, workers. `rules_*` decide, `sql_*` read and write."""
