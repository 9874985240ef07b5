"""What runs on the other machines of a pool: a session of one pool, on workers of that machine."""
