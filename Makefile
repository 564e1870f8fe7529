# SPDX-License-Identifier: Apache-2.0
# Shortcuts for the common steps; CMake (CMakePresets.json) does the building. On a fresh machine run
# make demo or make test.
JOBS ?= $(shell nproc)
MINUTES ?= 10
HOURS ?= 1
PREFIX ?= /usr/local

# Uses Ninja if it is installed, else make. A build folder keeps the generator it was configured with.
export CMAKE_GENERATOR ?= $(if $(shell command -v ninja),Ninja,Unix Makefiles)
export CTEST_PARALLEL_LEVEL ?= $(JOBS)
export JOBS

.PHONY: help build demo docs test test-sanitizers test-long stress lint format format-check fuzz install clean

help:
	@echo "make demo              install what is missing, build, run the five presets"
	@echo "make test              install what is missing, build, run the tests"
	@echo "make test-sanitizers   run tests under the address, undefined-behaviour and thread sanitizers"
	@echo "make test-long         run the emulator's tests with 20 schedules and every kernel's mutants"
	@echo "make stress HOURS=1    run the stress test: threads, forks, failing allocations"
	@echo "make build             make the release build in build/"
	@echo "make docs              make the documentation as a site in build-docs/site"
	@echo "make lint              run clang-format and clang-tidy"
	@echo "make format            run clang-format in place"
	@echo "make fuzz MINUTES=10   run the fuzz targets, 10 minutes in total"
	@echo "make install PREFIX=/usr/local"
	@echo "make clean             remove every build folder"

build:
	@tools/setup.sh demo
	cmake --preset release
	cmake --build --preset release --parallel $(JOBS)

# Without what takes most of a build: a GPU's kernels are compiled when they are first used.
demo:
	@tools/setup.sh demo
	cmake --preset release -DOCTAVO_TESTS=OFF -DOCTAVO_EMULATED_KERNELS=OFF -DOCTAVO_SHIPPED_KERNELS=OFF \
	  -DOCTAVO_EVOLVE=OFF
	cmake --build --preset release --parallel $(JOBS) --target octavo_cli
	build/octavo check --suite presets --device auto
	build/octavo bench --iters 10 --warmup 2 --device auto

test:
	@tools/setup.sh test
	@tools/python_env.sh module
	@tools/test.sh

test-sanitizers:
	@tools/setup.sh test
	@tools/test.sh sanitizers

# Runs the emulator under twenty schedules, and the mutants of every kernel: hours of CPU.
test-long: build
	OCTAVO_TEST_LONG=1 ctest --preset release -R 'Emulator|Sm80|Sm90|Quantize|Ladder|HeadersAlone'

# Runs on two cores.
stress: build
	OCTAVO_STRESS_SECONDS=$$(($(HOURS) * 3600)) taskset -c 0,1 build/tests/stress/stress_test

# In an environment of its own, which is made again when its list of packages changes.
build-docs/installed: tools/docs_requirements.txt
	python3 -m venv build-docs
	build-docs/bin/pip install --quiet --disable-pip-version-check -r tools/docs_requirements.txt
	touch $@

docs: build-docs/installed
	NO_MKDOCS_2_WARNING=1 build-docs/bin/mkdocs build --strict

lint:
	@tools/setup.sh lint
	@tools/lint.sh

format-check:
	@tools/setup.sh lint
	@tools/sources.sh | xargs clang-format --dry-run -Werror
	@echo "clang-format: clean"

format:
	@tools/setup.sh lint
	@tools/sources.sh | xargs clang-format -i

fuzz:
	@tools/setup.sh fuzz
	@tools/fuzz.sh $(MINUTES)

install: build
	cmake --install build --prefix $(PREFIX)

clean:
	rm -rf build build-debug build-asan build-tsan build-fuzz build-python build-docs build-repro
