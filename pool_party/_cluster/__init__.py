"""Workers on other machines: the pool's side of their sessions. `pool_party/nodes` is the other side."""
