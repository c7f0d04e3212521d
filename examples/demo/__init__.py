"""The demo: a real server and four worker processes on real input; one worker is killed."""
