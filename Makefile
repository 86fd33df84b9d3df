# Everything a fresh clone needs: `make demo` trains from disk, `make test` runs the tests, `make lint` the checks.
VENV ?= .venv
PYTHON ?= python3
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check --no-compile
CPP_FILES := $(shell find cpp kernels tests -name '*.cpp' -o -name '*.hpp' -o -name '*.cuh' -o -name '*.cu')
# Some machines forbid Python to keep what it compiled; every process that a test starts would compile torch anew (4 s).
export PYTHONDONTWRITEBYTECODE :=
NATIVE_INPUTS := pyproject.toml cpp/CMakeLists.txt $(shell find cpp kernels -type f)

.PHONY: demo test docs wheel floors coverage test-long flaky soak fuzz lint types tidy ready format figures notebooks build clean help
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

demo: build ## generate a graph, train GraphSAGE from disk within a memory budget, write an HTML report
	$(PY) -m gids demo

test: ready ## run every test that does not take minutes
	$(PY) -m pytest -n 4 --dist loadfile --no-loadscope-reorder -m "not long" tests

test-long: ready $(VENV)/.fuzz $(VENV)/ray-train ## run the tests that take minutes (ONLY=tests/nvme); the result is kept in experiments/results/long/test_long.json
	.ci/packages g++-aarch64-linux-gnu qemu-user
	$(PY) tests/long_run.py $(ONLY)

flaky: ready ## run the suite under load, in random order, until the record has ROUNDS of this commit (ONLY=tests/gids/storage)
	.ci/packages stress-ng bindfs
	$(PY) tests/flaky.py --rounds $(or $(ROUNDS),10) $(if $(ONLY),--tests $(ONLY))

soak: build ## read and compare random rows with every engine for MINUTES; the count is kept in experiments/results/long/soak.json
	$(PY) tests/soak.py --minutes $(or $(MINUTES),60)

fuzz: build $(VENV)/.fuzz ## look for bytes that no parser has an answer to, for SECONDS each (ONLY="manifest curve")
	$(PY) tests/fuzz/run.py --seconds $(or $(SECONDS),60) $(ONLY)

lint: ready ## run every static check
	.ci/packages clang-format clang-tidy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	clang-format --dry-run --Werror $(CPP_FILES)
	$(MAKE) --no-print-directory --jobs 2 types tidy

types:
	$(VENV)/bin/mypy

# clang-tidy reads a folder's files as one: each alone, it would read the same headers 41 times. Two checks look at a
# main file only; they get the files that have something to check.
tidy:
	rm -rf build/lint
	$(VENV)/bin/cmake -S cpp -B build/lint -DGIDS_TESTS=ON > /dev/null
	ls build/lint/CMakeFiles/gids_host.dir/Unity/*.cxx | xargs -P 2 -n 1 clang-tidy --quiet -p build/lint
	find cpp -name '*.cpp' ! -name 'bind*' | xargs grep -lE '^ *(using [A-Za-z_:]+::\w+;|namespace \w+ =)' | \
	    xargs -r clang-tidy --quiet -p build/cp[0-9]* --checks='-*,misc-unused-alias-decls,misc-unused-using-decls'

wheel: build $(VENV)/.packaged ## build an sdist and a manylinux wheel; run the tests on it without the source tree
	$(PY) tests/packaged.py wheel $(ONLY)

floors: build $(VENV)/.packaged ## run the tests with the oldest releases that pyproject.toml declares (downloads 3 GB)
	$(PY) tests/packaged.py floors $(ONLY)

coverage: build $(VENV)/.packaged ## print which share of Python and C++ the tests run
	$(PY) tests/packaged.py coverage $(ONLY)

docs: build $(VENV)/.tests ## build the documentation site: build/docs/index.html; a warning is an error
	$(PY) -m sphinx -q -W --keep-going -b html docs build/docs
	@echo "build/docs/index.html"

figures: build ## run every experiment (ONLY="fig05 fig13", SCALE=tiny, AGAIN=1) and gather the figures on one page
	$(PY) -m experiments $(if $(ONLY),--only $(ONLY)) --scale $(or $(SCALE),full) $(if $(AGAIN),--again)

notebooks: build $(VENV)/.tests ## run every notebook and keep its outputs
	$(PY) -m experiments.notebooks.execute

format: build $(VENV)/.tests ## rewrite sources in the project's format
	-$(VENV)/bin/ruff check --fix --quiet .
	$(VENV)/bin/ruff format .
	clang-format -i $(CPP_FILES)

ready:  # the native build and the tests' packages need nothing of each other
	$(MAKE) --no-print-directory --jobs 2 build $(VENV)/.tests

build: $(VENV)/.native ## virtual environment and native module

clean: ## remove what the other targets made
	rm -rf $(VENV) build gids/_native.pyi

$(VENV)/.base: requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -r requirements.txt
	touch $@

$(VENV)/.native: $(VENV)/.base $(NATIVE_INPUTS)
	.ci/packages liburing-dev
	$(PIP) --no-build-isolation --no-deps -e .
	cp build/*/_native.pyi gids/_native.pyi
	touch $@

$(VENV)/.packaged: $(VENV)/.tests tests/requirements-packaged.txt
	$(PIP) -r tests/requirements-packaged.txt
	touch $@

$(VENV)/.fuzz: $(VENV)/.tests tests/requirements-fuzz.txt
	$(PIP) -r tests/requirements-fuzz.txt
	touch $@

$(VENV)/ray-train: $(VENV)/.tests tests/requirements-ray-train.txt
	$(PIP) --no-deps --target $@ -r tests/requirements-ray-train.txt
	touch $@

$(VENV)/.tests: $(VENV)/.base requirements.txt docs/requirements.txt $(wildcard tests/requirements*.txt)
	.ci/packages liburing-dev doctest-dev fio chromium qemu-system-x86
	$(PIP) -r requirements.txt -r tests/requirements.txt -r docs/requirements.txt
	$(PIP) --no-deps -r tests/requirements-nodeps.txt
	for name in cuda12 cupy floor; do $(PIP) --no-deps --upgrade --target $(VENV)/$$name -r tests/requirements-$$name.txt || exit 1; done
	touch $@
