"""Runs the machine, `python play.py kind`: a main module that is quick to import, as each worker process imports it."""

if __name__ == "__main__":
    import machine

    machine.main()
