"""Runs the machine, `python play.py kind`. Each worker process imports this main module, so it imports quickly."""

if __name__ == "__main__":
    import machine

    machine.main()
