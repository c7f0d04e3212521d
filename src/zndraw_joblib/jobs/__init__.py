"""What runs a job, in a worker or in the server: extensions, `@job`, codecs, context, log capture, traces."""
