"""Real processes, real faults, and a proof of what is promised, seen from outside."""
