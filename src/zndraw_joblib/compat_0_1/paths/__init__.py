"""The modules of version 0.1.x, found as `zndraw_joblib.<name>`. They contain no code, only old names."""
