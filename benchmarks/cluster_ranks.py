"""What cluster_ways.py starts by `mpiexec`: mpi4py.futures wants a file, and tasks of `__main__` would cost more."""

from cluster_ways import main

if __name__ == "__main__":
    main()
