"""Tests of the host, with the fixtures of `zndraw_joblib.testing`."""
