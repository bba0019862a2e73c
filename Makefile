# Everything one does with Messina from a checkout. `make help` lists the targets.
.DEFAULT_GOAL := help
.PHONY: help run build test test-clients soak fuzz sim bench-one-node

MEMORY ?= 2G

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1#\2/p' $(MAKEFILE_LIST) | column -t -s '#'

run: build ## build a release binary and start a node on 127.0.0.1, data under ./data (MEMORY=2G)
	exec target/release/messina serve --data-dir data --memory $(MEMORY)

build: ## build the release binary, target/release/messina
	cargo build --release -p messina

test: ## format, lints, crate edges, unit tests, short simulation, short client and crash tests
	tests/run test

test-clients: ## every client program in full: cqlsh, drivers, latte, cqlload, sstable tools, ten kill -9
	tests/run clients

soak: ## long crash rounds and long simulation (SOAK_MINUTES=30)
	tests/run soak

fuzz: ## damage the corpus of every parser for a while (FUZZ_SECONDS=60 for each)
	tests/run fuzz

sim: ## many seeds of the simulation (SEEDS, EVERY)
	tests/run sim

bench-one-node: ## one node beside Cassandra 5, same machine, same run; figures and ratios as JSON (QUICK=1)
	bench/one-node
