# The front door to the CMake build. `make help` lists what there is.
#
# Any option of the build goes behind make: `make PGPT_ARCH=x86-64-v3`, `make test PGPT_WERROR=ON`. What was given
# once stays in the build folder until it is given anew or `make clean`. SETUP=true installs nothing.

PREFIX ?= /usr/local
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)
TEST_JOBS ?= 2
CMAKE  ?= cmake
SETUP  ?= scripts/setup

# Ninja where it is installed (asked when it is needed: set-up may just have brought it); a build folder keeps its own.
generator  = "$${CMAKE_GENERATOR:-$$(command -v ninja >/dev/null && echo Ninja)}"
options   := $(foreach name,$(filter PGPT_%,$(.VARIABLES)),'-D$(name)=$($(name))')
configure  = MAKEFLAGS= CMAKE_GENERATOR=$(generator) $(CMAKE) --preset $(1) $(options) $(2) >/dev/null
build      = MAKEFLAGS= $(CMAKE) --build --preset $(1) -j $(JOBS)
test       = ctest --preset $(1) -j $(TEST_JOBS)

.PHONY: all setup train test sanitize fuzz debug format format-check lint install clean help

all: ## build the program build/pgpt and the libraries
	@command -v $(CMAKE) >/dev/null || { echo "make: cmake is missing; run 'make setup' first" >&2; exit 1; }
	@$(call configure,release,$(if $(wildcard build/CMakeCache.txt),,-DBUILD_TESTING=OFF))
	@$(call build,release)

setup: ## install the packages that building needs, where they are missing
	@$(SETUP) build

train: ## set up the machine, build, and train the demo model
	@$(SETUP) build
	@$(MAKE) --no-print-directory all
	build/pgpt train

test: ## set up the machine, build with the tests, and run them
	@$(SETUP) build test
	@$(call configure,release,-DBUILD_TESTING=ON)
	@$(call build,release)
	$(call test,release)

sanitize: ## build with the sanitizers and run the tests
	@$(SETUP) build test
	@$(call configure,sanitize,-DBUILD_TESTING=ON)
	@$(call build,sanitize)
	$(call test,sanitize)

fuzz: ## feed the readers of files with hostile input, FUZZ_SECONDS (60) each
	@$(SETUP) build fuzz
	@$(call configure,fuzz)
	@$(call build,fuzz)
	@scripts/fuzz

debug: ## build build-debug/pgpt for the debugger
	@$(call configure,debug,$(if $(wildcard build-debug/CMakeCache.txt),,-DBUILD_TESTING=OFF))
	@$(call build,debug)

format: ## put every source file into the house style
	@scripts/format

format-check: ## say which files are not in the house style
	@scripts/format --check

lint: ## clang-tidy, cppcheck, the rooms, shellcheck
	@$(SETUP) build test lint
	@$(call configure,release,-DBUILD_TESTING=ON)
	@scripts/lint

install: ## install below PREFIX (/usr/local), staged below DESTDIR if given
	@$(MAKE) --no-print-directory all
	@$(CMAKE) --install build --prefix "$(PREFIX)"

clean: ## remove what was built
	rm -rf build build-debug build-sanitize build-fuzz build-mpich build-cuda build-cache

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
