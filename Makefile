# Everything runs in .venv, which `uv` fills from the lock file. `make run` and `make test` need nothing but
# git, make and Python 3.11 or newer.

# With it, as in many images, each of a thousand processes would compile the same sources again.
unexport PYTHONDONTWRITEBYTECODE

# In the locale C Python can't read the name of a folder such as /home/jürgen.
ifneq ($(filter C POSIX,$(LC_ALL)),)
export LC_ALL := C.UTF-8
endif

# Which TensorFlow to install: `cpu`, or `gpu` (with CUDA) on a machine with an NVIDIA GPU.
TENSORFLOW ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
UV := $(shell command -v uv || echo .uv/bin/uv)
BIN := .venv/bin
# What `make run` needs is a small part of what the tests need.
READY := .venv/.ready-$(TENSORFLOW)
SYNCED := .venv/.synced-$(TENSORFLOW)
# The oldest TensorFlow and Keras that are declared: tests/versions runs with them.
OLDEST := .venv-oldest/.synced
PYTEST := $(BIN)/pytest -n auto --no-loadscope-reorder --durations=10
PACKAGES := operator/src trainer/src testbed release tests examples benchmarks
JOB ?= examples/digits.yaml
PYTHON ?= 3.13

.DEFAULT_GOAL := help
.PHONY: help run test test-cluster test-nightly test-fleet test-long test-keras test-gpu test-newest test-next check docs pictures format generate golden release-check version first-steps cluster-up cluster-down \
    kind-e2e clean

help:  ## Show what there is.
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: $(READY)  ## Train the digits example here: two workers and an evaluator. ARGS=--fresh starts over.
	@$(BIN)/trainjob run $(JOB) $(ARGS)

test: check  ## Check, and test every rule with real TensorFlow processes and fakes of the API server. ARGS='-k name' runs some.
	@$(PYTEST) -m 'not cluster and not nightly' $(ARGS)

test-cluster: $(SYNCED)  ## Test with the real Kubernetes, which it builds first; needs Linux and root. ARGS='-k name' runs some.
	@$(if $(TRAINJOB_TEST_KUBECONFIG),,PYTHONPATH=testbed $(BIN)/python -m testbed prepare)
	@$(PYTEST) -m 'cluster and not nightly' $(ARGS)

# Each part can be run alone. A part that fails doesn't keep the others from running.
NIGHTLY := test-long test-keras test-fleet test-newest test-next
test-nightly:  ## Run what takes hours, and say at the end how each part ended; needs Linux and root.
	@for part in $(NIGHTLY); do \
	    echo "=== make $$part"; begun=$$(date +%s); \
	    $(MAKE) --no-print-directory $$part && end=passed || { end=FAILED; failed=1; }; \
	    said="$$said$$(printf '%-12s %s after %s s' "$$part" "$$end" "$$(($$(date +%s) - begun))")\n"; \
	done; printf "\n$$said"; exit $${failed:-0}

FLEET := fleet e2e release versions
test-fleet: $(SYNCED) $(OLDEST)  ## A part of it: fleets, several nodes, tools of a release, the oldest versions. ARGS='-k name' runs some.
	@$(BIN)/pytest --durations=10 -m nightly $(FLEET:%=tests/%) $(ARGS)

test-long: $(SYNCED)  ## A part of it: the kinds of scripts, kills, faulty disks, chaos. ARGS='-k name' runs some.
	@$(PYTEST) -m nightly $(patsubst %,--ignore=tests/%,$(FLEET) gpu keras_forms keras_own) $(ARGS)

test-keras: $(SYNCED)  ## A part of it: Keras's own tests under two workers, and every form with 1, 2 and 3. ARGS='-k trainer' runs some.
	@FORMS_WORKERS=1,2,3 $(PYTEST) tests/keras_forms tests/keras_own $(ARGS)

test-gpu: $(SYNCED)  ## On a machine with an NVIDIA GPU: forms, ResNet-50 beside Keras alone, doctor, a profile, a kill.
	@$(BIN)/pytest --durations=10 tests/gpu $(ARGS)

test-newest: | $(UV)  ## A part of it: the tests of `make test` with PYTHON=3.13 and the newest `kubernetes` that is declared.
	UV_PROJECT_ENVIRONMENT=.venv-newest $(UV) sync --quiet --locked --python $(PYTHON) --extra cpu
	$(UV) pip install --quiet --python .venv-newest --upgrade-package kubernetes -e operator -e trainer
	.venv-newest/bin/pytest -n auto --no-loadscope-reorder -p no:cacheprovider --durations=10 \
	    -m 'not cluster and not nightly' $(ARGS)

test-next: | $(UV)  ## A part of it: forms with the newest TensorFlow and Keras, pre-releases included. ARGS='-k name' runs some.
	UV_PROJECT_ENVIRONMENT=.venv-next $(UV) sync --quiet --locked --compile-bytecode
	$(UV) pip install --quiet --python .venv-next --prerelease allow --upgrade tensorflow-cpu tensorboard
	$(UV) pip uninstall --quiet --python .venv-next keras keras-nightly
	$(UV) pip install --quiet --python .venv-next --no-deps --prerelease allow --upgrade keras-nightly
	.venv-next/bin/pytest --durations=10 -n auto --no-loadscope-reorder tests/keras_forms \
	    tests/trainer/test_private_names.py tests/trainer_plain/test_keras_repair.py \
	    tests/multiprocess/test_library.py::test_two_workers_equal_one $(ARGS)

check: $(SYNCED)  ## Style, types, layers, links of the docs, and that generated files are up to date.
	@$(BIN)/ruff check $(PACKAGES)
	@$(BIN)/ruff format --check $(PACKAGES)
	@$(BIN)/mypy
	@said=$$($(BIN)/lint-imports --no-cache) && echo "$$said" | tail -n 1 || { echo "$$said"; exit 1; }
	@$(BIN)/python -m trainjob.codegen --check
	@$(UV) lock --check --quiet
	@$(MAKE) --no-print-directory docs

docs: $(SYNCED)  ## Build the site of docs/ into site/; a broken link is an error.
	@said=$$($(BIN)/zensical build --strict --clean 2>&1) \
	    || { echo "$$said" | sed -E -e 's/\x1b\[[0-9;]*m//g' -e '/^(  |Traceback)/d'; exit 1; }

pictures: $(SYNCED)  ## Train examples, play a fleet, and make the pictures in docs/pictures again; needs Debian's apt-get for Chromium.
	@PYTHONPATH=testbed $(BIN)/python release/pictures.py

format: $(SYNCED)  ## Bring the sources into shape.
	@$(BIN)/ruff check --fix --quiet $(PACKAGES) || true
	@$(BIN)/ruff format $(PACKAGES)

generate: $(SYNCED)  ## Write what is generated: the CRD, the editors' schema, reference pages.
	@$(BIN)/python -m trainjob.codegen

golden: $(SYNCED)  ## Write tests/golden again: what tests note of the program's texts. ARGS='-k name' for some.
	@GOLDEN=all $(BIN)/pytest -q -n auto tests/core tests/agent tests/convert tests/client tests/cli $(ARGS)

release-check: check  ## Build and check all that a release publishes; images need Linux and root.
	@$(BIN)/pytest -n auto --no-loadscope-reorder tests/release tests/images tests/chart \
	    tests/e2e/control_plane/test_helm.py tests/e2e/node/test_images.py tests/e2e/node/test_install.py $(ARGS)

version: $(SYNCED)  ## Write NEW=0.2.0 as the version into all files that name it.
	@$(BIN)/python release/versions.py set $(NEW)
	@$(UV) lock --quiet
	@$(MAKE) --no-print-directory generate

first-steps: $(SYNCED)  ## Record a new user's first minutes, from pip to a cluster; needs Linux and root.
	@PYTHONPATH=testbed $(BIN)/python release/first_steps.py

cluster-up: $(SYNCED)  ## Start a real single-node Kubernetes here, with the images in it; needs Linux and root.
	@PYTHONPATH=testbed $(BIN)/python -m testbed up

cluster-down: $(SYNCED)  ## Stop it, and clean up after it.
	@PYTHONPATH=testbed $(BIN)/python -m testbed down

kind-e2e: $(SYNCED)  ## Run tests/e2e/node on a kind cluster of its own, with Docker or as root on Linux. ARGS='-k name' runs some.
	@tests/kind/run $(ARGS)

clean:  ## Remove the environment and the runs.
	rm -rf .venv .venv-oldest .venv-newest .venv-next .uv runs examples/runs site .cache

LOCKED := uv.lock pyproject.toml operator/pyproject.toml trainer/pyproject.toml

# Beside what the tests need it takes nothing away. A run compiles what it imports, a third of all files. uv starts a
# Python that would be in the locale C.
$(READY): $(LOCKED) | $(UV)
	LC_ALL=C.UTF-8 $(UV) sync --locked $(if $(wildcard $(SYNCED)),--inexact) --no-dev --group examples \
	    --extra $(TENSORFLOW)
	@rm -f $(filter-out $(SYNCED),$(wildcard .venv/.ready-* .venv/.synced-*)) && touch $@

$(SYNCED): $(LOCKED) | $(UV)
	LC_ALL=C.UTF-8 $(UV) sync --locked --compile-bytecode --extra $(TENSORFLOW) --group docs
	@rm -f .venv/.ready-* .venv/.synced-* && touch $(READY) $@

$(OLDEST): uv.lock pyproject.toml trainer/pyproject.toml | $(UV)
	UV_PROJECT_ENVIRONMENT=.venv-oldest $(UV) sync --quiet --locked --group oldest
	@touch $@

.uv/bin/uv:
	python3 -m venv .uv
	.uv/bin/pip install --quiet --require-hashes --only-binary :all: -r build-tools.txt
