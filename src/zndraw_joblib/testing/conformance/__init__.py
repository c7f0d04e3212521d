"""A conformance kit for workers in any language.

    python -m zndraw_joblib.testing.conformance --command 'node worker.js'

plays scenarios with a worker, a real server with a test clock, and a proxy that loses requests and answers.
The protocol is in ``docs/reference/worker-protocol.md``. It needs the extra `server`.
"""
