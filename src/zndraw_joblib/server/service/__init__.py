"""The rules, one module a noun: they take lists, decide, and return a result or a problem for each item."""
