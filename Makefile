# Everything one does with Messina from a checkout. `make help` lists the targets.
.DEFAULT_GOAL := help
.PHONY: help run cluster build test test-clients test-spark test-apps test-faults soak fuzz forge sim bench-one-node bench-paging bench-storage bench-protocol bench-cluster bench-paging-cluster

MEMORY ?= 2G

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1#\2/p' $(MAKEFILE_LIST) | column -t -s '#'

run: build ## build a release binary and start a node on 127.0.0.1, data under ./data (MEMORY=2G)
	exec target/release/messina serve --data-dir data --memory $(MEMORY)

cluster: build ## build a release binary and start three nodes on 127.0.0.1, .2 and .3, data under ./data/cluster
	exec tools/cluster/run

build: ## build the release binary, target/release/messina
	cargo build --release -p messina

test: ## format, lints, edges between crates and modules, texts, unit tests, short simulation, short client and crash tests
	tests/run test

test-clients: ## every client program in full: cqlsh, drivers of five languages, DSBulk, latte, cqlload, sstable tools, ten kill -9
	tests/run clients

test-spark: ## a Spark job in local mode on the Cassandra connector (downloads 300 MB once)
	tests/run spark

test-apps: ## nine applications (Pekko, JanusGraph, Spring Data, Zipkin, Jaeger, Feast, Celery, Django, express-cassandra) on three nodes with one kill -9
	tests/run apps

test-faults: ## attacks: no descriptors, damaged files, half requests, floods of large requests, foreign pages, changed addresses, full disk
	tests/run faults

soak: ## long crash rounds and long simulation (SOAK_MINUTES=30)
	tests/run soak

fuzz: ## damage the corpus of every parser for a while (FUZZ_SECONDS=60 for each)
	tests/run fuzz

forge: ## make wrong paging states, by default 10 million (PAGING_STATES), and have each refused
	PAGING_STATES=$${PAGING_STATES:-10000000} cargo test --release -p messina-fuzz --test paging_states -- --nocapture

sim: ## thousands of seeds of simulated clusters, and many lives of simulated nodes (SEEDS, SECONDS, TRIALS, EVERY)
	tests/run sim

bench-one-node: ## one node beside Cassandra 5, same machine, same run; figures and ratios as JSON (QUICK=1)
	bench/one-node

bench-paging: ## stateful beside stateless paging, and beside Cassandra 5; figures and ratios as JSON (QUICK=1)
	bench/paging

bench-storage: ## writes with compaction, reads from disk, compaction, memory (MINUTES=60), amplification; beside Cassandra 5 and fio (QUICK=1)
	bench/storage

bench-cluster: ## three nodes beside a three-node Cassandra 5: CPU, throughput, a node killed or stopped, forming, DDL; figures as JSON (QUICK=1)
	bench/cluster

bench-paging-cluster: ## stateful beside stateless paging on three nodes, and beside three of Cassandra 5; figures and ratios as JSON (QUICK=1)
	bench/paging-cluster

bench-protocol: ## version 5 and TLS beside version 4, parsing, very many prepared statements; figures as JSON (QUICK=1)
	bench/protocol
