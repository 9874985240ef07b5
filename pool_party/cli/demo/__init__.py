"""The demonstration behind `pool-party demo`.

Workers import this package, since it contains the task functions. So its `__init__` imports nothing by itself.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pool_party.cli.demo.plan import Plan


def run(plan: "Plan") -> int:
    """Run the whole demonstration and return an exit status: 0, or 1 if two pictures differ."""
    from pool_party.cli.demo.show import run_plan

    return run_plan(plan)
