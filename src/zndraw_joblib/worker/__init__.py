"""The SDK: a worker process, its jobs and providers, and the client that submits tasks."""
