"""What happened in a pool: traces of its workers, figures and pictures made of them."""
