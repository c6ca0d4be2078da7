# Each target sets up all it needs on a fresh machine: a virtual environment next to this file, pinned versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready
PARALLEL := -n auto --dist loadfile
BUNDLE := smollm2-135m-ngram.bundle

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-families lint docs format bench c-example clean

help:
	@echo "make demo           build SmolLM2-135M with n-gram drafts, watch it answer, check the answer against plain decoding"
	@echo "make test           lint, types, the documentation and every test"
	@echo "make test-fast      lint, types and the tests not marked slow"
	@echo "make test-families  a bundle of every model family, compared with PyTorch"
	@echo "make bench          latency tests: against PyTorch, and costs on this machine"
	@echo "make peers          this project against other systems, each in its own environment"
	@echo "make lint           ruff and mypy"
	@echo "make docs           the documentation as a site, in build/site"
	@echo "make format         ruff's fixes and formatting"
	@echo "make c-example      the shared library for C, and a C program that decodes with it"
	@echo "make clean          remove the environment and caches"

KERNELS := runtime/kernels/pyproject.toml runtime/kernels/CMakeLists.txt $(wildcard runtime/kernels/specruntime_kernels/*.py \
	runtime/kernels/src/*.* runtime/kernels/src/*/*.*)

# The operators are compiled into a package of their own; without a compiler bundles run on ONNX Runtime's own ones.
$(READY): $(INSTALLED) $(KERNELS)
	@if command -v $(CXX) >/dev/null; then \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps ./runtime/kernels; \
	else echo "no C++ compiler ($(CXX)): specruntime-kernels is not built, bundles run on ONNX Runtime's own operators"; fi
	@touch $@

$(INSTALLED): pyproject.toml runtime/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "found Python %d.%d, 3.11 or newer is needed: make PYTHON=python3.11" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e './runtime[ort,text]' -e '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/specexport build recipes/smollm2-135m-ngram.yaml -o $(BUNDLE)
	$(BIN)/specexport generate $(BUNDLE) --chat --stats --compare --max-new-tokens 128 --prompt-file recipes/demo-prompt.txt
	$(BIN)/specexport check $(BUNDLE)

test: lint docs
	$(BIN)/python -m pytest $(PARALLEL)

test-fast: lint
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow"

test-families: $(READY)
	SPECEXPORT_ALL_FAMILIES=1 $(BIN)/python -m pytest $(PARALLEL) tests/specexport/export/test_published_*.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)
	$(BIN)/properdocs build --strict --config-file mkdocs.yml

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python -m pytest tests/latency --timeout 1800

c-example: $(READY)
	$(BIN)/python -m specruntime.clib -o build/c
	$(CC) -std=c99 -O2 -Wall -Wextra runtime/examples/decode.c -Ibuild/c -Lbuild/c -lspecruntime -Wl,-rpath,$(CURDIR)/build/c -o build/c/decode
	$(BIN)/specexport build recipes/tiny-random.yaml -o build/c/tiny-random.bundle
	build/c/decode build/c/tiny-random.bundle "the quick brown fox" 32

peers: $(READY)
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
