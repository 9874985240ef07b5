"""Workers on other machines: the pool's side of their sessions. `pool_party/_cluster/node` is the other side."""
