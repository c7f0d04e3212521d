"""`python -m zndraw_joblib` is the command `zndraw-joblib`."""

from zndraw_joblib.cli import main

# A worker's processes are spawned, and import this module again.
if __name__ == "__main__":
    main()
