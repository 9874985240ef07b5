"""How values travel between the parent and its workers."""
