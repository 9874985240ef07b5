"""What every other part may import: errors, the log, limits of the system, descriptors, records, threads, imports."""
