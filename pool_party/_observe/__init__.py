"""What happened in a pool: traces of its workers, and figures and pictures of them."""
