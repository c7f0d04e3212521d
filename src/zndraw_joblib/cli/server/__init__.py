"""Commands of a server's operator; each module here needs the extra ``server``."""
