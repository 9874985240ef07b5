# Each target works on a bare checkout: tools/setup-env makes the environment that it needs, once.
#
#   PYTHON=3.12, PYTHON=/path/to/python   which interpreter; else the newest that tools/find-python finds
#   ARGS='-k cancel'                      more arguments for the program that the target runs

.PHONY: help demo examples test test-all model soak lint types bench pyperformance sanitize explore clean
.DEFAULT_GOAL := help

with_env = @set -e; python=$$(tools/setup-env $(1)); "$$python"

help:      ## this list
	@sed -n 's/^#  //p; s/^\([a-z-]*\): *## /  make \1\t/p' Makefile | expand -t 22

demo:      ## a short tour on this machine
	$(call with_env,demo) -m pool_party.cli.main demo $(ARGS)

examples:  ## all examples in full, on a quiet machine; keeps what they print in examples/output
	@set -e; python=$$(tools/setup-env examples); cd examples/output; for file in ../*.py; do echo "$$file"; "$$python" "$$file" >"$$(basename "$$file" .py).txt"; done

test:      ## the tests but the slow ones
	$(call with_env,test) -m pytest -m 'not slow' $(ARGS)

test-all:  ## all tests
	$(call with_env,test) -m pytest $(ARGS)

model:     ## new random programs against the interface: KIND=interp SECONDS=600, ARGS='--seed 1' or ARGS=--shrink
	@set -e; python=$$(tools/setup-env test); PYTHONPATH=tests:tests/isolated "$$python" tests/model/play.py $(or $(KIND),process) --profile random --seconds $(or $(SECONDS),60) $(ARGS)

soak:      ## pools in a hostile world for MINUTES=60; what they hold must stay flat. ARGS='--kind interp --seed 1'
	@set -e; python=$$(tools/setup-env test); PYTHONPATH=tests/isolated "$$python" tests/soak.py --minutes $(or $(MINUTES),60) $(ARGS)

lint:      ## ruff
	$(call with_env,dev) -m ruff check $(ARGS)

types:     ## mypy, strict; and whether the native module is what its stub says
	$(call with_env,dev) -m mypy $(ARGS); "$$python" -m mypy.stubtest pool_party._native

bench:     ## all benchmarks and their report, 45 min: BENCH=dispatch for one, ARGS=--list, ARGS=--quick
	$(call with_env,bench) benchmarks/bench.py $(ARGS) $(BENCH)

pyperformance:  ## the pool-party document's workloads in every mode: ARGS='--fast -b fib -o fib.json'
	@tools/run-pyperformance $(ARGS)

sanitize:  ## the C code under ASAN, UBSAN and TSAN
	@set -e; python=$$(tools/setup-env test); PYTHON="$$python" tests/native/run $(ARGS)

explore:   ## channel and gate under a scheduler that tries interleavings: ARGS='60 7' for an hour from seed 7 on, ARGS=exhaust for all
	@tests/native/explore $(ARGS)

clean:     ## remove everything that the other targets made
	@rm -rf .venv venv build dist *.egg-info pool_party/_native*.so pool_party_demo.png .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
