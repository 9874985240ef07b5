# Each target works on a bare checkout: tools/setup-env makes the environment that it needs, once.
#
#   PYTHON=3.12, PYTHON=/path/to/python   the interpreter; by default the newest that tools/find-python finds
#   ARGS='-k cancel'                      more arguments for the program that the target runs

.PHONY: help demo examples check format test test-all model soak soak-cluster lint types bench docs pyperformance sanitize explore cpython joblib patched sklearn dask runner science packages effects test-elsewhere test-arm64 musl wheel cibuildwheel workflows test-nightly clean
.DEFAULT_GOAL := help

# Tests start thousands of processes and interpreters. Each would compile all that it imports if none kept the bytecode.
unexport PYTHONDONTWRITEBYTECODE

with_env = @set -e; python=$$(tools/setup-env $(1)); "$$python"
# Tests wait much of the time, so more run at once than there are cores. ARGS=-n0 runs them in one process, for a debugger.
pytest = -m pytest -n 4 --dist worksteal

help:      ## this list
	@sed -n 's/^#  //p; s/^\([a-z0-9-]*\):[a-z ]*## /  make \1\t/p' Makefile | expand -t 22

demo:      ## a short tour on this machine
	$(call with_env,demo) examples/demo $(ARGS)

examples:  ## all examples in full, on a quiet machine; keeps what they print in examples/output
	@set -e; python=$$(tools/setup-env examples); cd examples/output; for file in ../*.py; do echo "$$file"; "$$python" "$$file" >"$$(basename "$$file" .py).txt"; done

test:      ## the tests but the slow ones
	$(call with_env,test) $(pytest) -m 'not slow' $(ARGS)

test-all:  ## all tests
	$(call with_env,test) $(pytest) $(ARGS)

elsewhere = $(addprefix contract/test_,pool imap executor options_of_calls promises state asyncio data identity arrays references) \
  $(addprefix core/test_,outcomes contexts) $(addprefix wire/test_,main_module definitions)
# The other rank imports the modules whose functions it runs.
rank_path = tests/support:tests/contract:tests/core:tests/wire
test-elsewhere:  ## the tests of what all kinds have in common, with kind="dask" and then in a rank of MPI; on CPython 3.14
	@set -e; python=$$(tools/setup-env test); POOL_PARTY_TEST_KINDS=dask "$$python" $(pytest) -m 'not slow' \
	  tests/cluster/test_broker.py tests/cluster/test_cluster.py $(elsewhere:%=tests/%.py) $(ARGS); \
	POOL_PARTY_TEST_KINDS=mpi PYTHONPATH=$(rank_path) "$${python%python}mpiexec" -n 2 "$$python" -m mpi4py.futures -m pytest -m 'not slow' \
	  $(patsubst %,tests/%.py,$(filter-out wire/test_main_module,$(elsewhere))) $(subst elsewhere.xml,mpi.xml,$(ARGS))

test-nightly:  ## the tests with development versions of NumPy and others; make test has these from then on, until make clean
	@set -e; python=$$(tools/setup-env test); "$$python" -m pip install -q --upgrade --pre --only-binary=:all: \
	  --extra-index-url https://pypi.anaconda.org/scientific-python-nightly-wheels/simple numpy scipy pandas scikit-learn
	$(call with_env,test) $(pytest) -m 'not slow' $(ARGS)

model:     ## new random programs against the interface: KIND=interp SECONDS=600, ARGS='--seed 1' or ARGS=--shrink
	@set -e; python=$$(tools/setup-env test); PYTHONPATH=tests/support:tests/isolated "$$python" tests/model/play.py $(or $(KIND),process) --profile random --seconds $(or $(SECONDS),60) $(ARGS)

soak:      ## pools in a hostile world for MINUTES=60; what they hold must stay flat. ARGS='--kind interp --seed 1'
	@set -e; python=$$(tools/setup-env test); PYTHONPATH=tests/support:tests/isolated "$$python" tests/soak.py --minutes $(or $(MINUTES),60) $(ARGS)

soak-cluster:  ## a pool on a Dask cluster whose workers are killed at random, KILLS=300 times; no task may run twice or be lost silently
	@set -e; python=$$(tools/setup-env test); PYTHONPATH=tests/support:tests/isolated "$$python" tests/soak_cluster.py --kills $(or $(KILLS),300) $(ARGS)

check: lint types test  ## what a pull request must pass: lint, types, and the tests on one interpreter

lint:      ## ruff: rules and format
	$(call with_env,dev) -m ruff check $(ARGS); "$$python" -m ruff format --check --quiet || { echo 'not formatted: run make format' >&2; exit 1; }

format:    ## let ruff format the Python code
	$(call with_env,dev) -m ruff format $(ARGS)

types:     ## mypy, strict; whether the native module is what its stub says; and what four type checkers find in programs of users
	$(call with_env,dev) -m mypy $(ARGS); "$$python" -m mypy.stubtest pool_party._native; "$$python" tests/typing/check.py

bench:     ## all benchmarks, into docs/performance.md, 90 min: BENCH=dispatch for one, ARGS=--list, ARGS=--quick
	$(call with_env,bench) benchmarks/bench.py $(ARGS) $(BENCH)

.PHONY: docs
docs:      ## the documentation, into build/docs/html; a warning is an error, and so is a dead link
	@set -e; python=$$(tools/setup-env docs); for builder in html linkcheck; do \
	  "$$python" -m sphinx -W --keep-going -q -b $$builder docs build/docs/$$builder $(ARGS); done

pyperformance:  ## the pool-party document's workloads in every mode: ARGS='--fast -b fib -o fib.json'
	@tools/run-pyperformance $(ARGS)

sanitize:  ## the C code under ASAN, UBSAN and TSAN
	@set -e; python=$$(tools/setup-env test); PYTHON="$$python" tests/native/run $(ARGS)

explore:   ## channel and gate under a scheduler that tries interleavings: ARGS='60 7' for an hour from seed 7 on, ARGS=exhaust for all
	@tests/native/explore $(ARGS)

cpython:   ## CPython's own tests of pools and executors, on ours
	$(call with_env,test) tests/cpython/run.py $(ARGS)

joblib:    ## joblib's own tests of Parallel, with our backend; ARGS='--kind interp', ARGS=--all
	$(call with_env,test) tests/library_suites/run.py joblib $(ARGS)

patched:   ## joblib's own tests with its own backends, under pool_party.patch; ARGS='--kind interp', ARGS=--all
	$(call with_env,test) tests/library_suites/run.py patched $(ARGS)

runner:    ## joblib's own tests and Dask's as they are, under `python -m pool_party --kind interp -m pytest`
	$(call with_env,test) tests/library_suites/run.py joblib-runner --kind interp $(ARGS)
	$(call with_env,test) tests/library_suites/run.py dask-runner --kind interp $(ARGS)

sklearn:   ## scikit-learn's tests of model selection and ensembles, each Parallel in two of our workers: ARGS='--kind thread'
	$(call with_env,test) tests/library_suites/run.py sklearn $(ARGS)

dask:      ## Dask's own tests of its schedulers on one machine, with our pools and executors
	$(call with_env,test) tests/library_suites/run.py dask $(ARGS)

science:   ## the own tests of NumPy and others in an interpreter (on CPython 3.14): ARGS='scipy pandas', ARGS=--list; uv finds some of them
	$(call with_env,test) tests/science/run.py $(ARGS)

packages:  ## which packages work in interpreters, into docs/packages.md; installs them into build/packages: ARGS='--only h5py'
	$(call with_env,test) tests/science/packages.py $(ARGS)

effects:   ## what the packages that make packages has installed do to a process, into tests/science/effects.json: ARGS=h5py
	@set -e; python=$$(tools/setup-env test); version=$${python%/bin/python}; \
	PYTHONPATH=. "build/packages/$${version##*/}/bin/python" tests/science/effects.py $(ARGS)

test-arm64:  ## the C stress test and the smoke test for arm64, cross-compiled and emulated (Debian or Ubuntu, x86-64)
	@tools/test-arm64 $(ARGS)

wheel:     ## the sdist and a wheel for each CPython here, each tried in an empty environment: ARGS=3.14 for one
	@tools/build-wheels $(ARGS)

cibuildwheel:  ## the wheels that are published, into wheelhouse/, in containers (needs docker): the settings are in pyproject.toml
	@set -e; python=$$(tools/setup-env); "$$python" -m pip install -q 'cibuildwheel ~= 4.3'; "$$python" -m cibuildwheel --platform linux $(ARGS)

workflows: ## actionlint on .github/workflows, from PATH or else by Go
	@if command -v actionlint >/dev/null; then actionlint; else go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12; fi

musl:      ## the C code with musl: whether it compiles, and the channel's stress test (Debian: musl-tools)
	@tools/check-musl

clean:     ## remove everything that the other targets made
	@rm -rf .venv venv build dist wheelhouse *.egg-info pool_party/_native*.so pool_party_demo.png .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
