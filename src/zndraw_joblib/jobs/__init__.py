"""The run of a job, in worker or server: extensions, `@job`, codecs, context, log capture, traces."""
