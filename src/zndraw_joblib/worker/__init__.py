"""The worker's house: register jobs, claim tasks, run them, report. Synchronous, over HTTP."""
