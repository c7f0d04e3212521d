"""Internal jobs: registry, executor, dispatcher, brokers and the worker process."""
