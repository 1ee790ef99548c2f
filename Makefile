# The two commands: `make demo` and `make test`. Both set up what they need; see .ci/setup.
.PHONY: help setup demo test loom mutants bench lint
.DEFAULT_GOAL := help

help: ## Show the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  \1\t/'

setup: ## Install a Redis server from the distribution's packages if there is none
	@.ci/setup

demo: setup ## Show several processes contending for one lock, two of them killed on the way
	cargo run --release --example demo

test: setup ## Run all tests against real servers that they start themselves
	cargo test --features tls-rustls
	@$(MAKE) --no-print-directory loom PREEMPTIONS=2

mutants: setup ## Put known bugs in and report which check catches each; ARGS="--only NAME" for one
	cargo run --profile attack -p fairlock-attack -- mutants $(ARGS)

PREEMPTIONS ?= 3
# Flags of its own, so a directory of its own.
loom: ## Check the interleavings of the client's threads, up to PREEMPTIONS preemptions in each
	RUSTFLAGS="--cfg fairlock_loom" CARGO_PROFILE_DEV_DEBUG=0 LOOM_MAX_PREEMPTIONS=$(PREEMPTIONS) \
		cargo test --target-dir target/loom --lib loom_models

bench: setup ## Measure the cost beside the floors, as ratios
	cargo bench --bench ratios

lint: ## What CI checks besides the tests
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --all-features -- -D warnings
	cargo clippy --lib -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --features tls-rustls
