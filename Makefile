# The targets for work in a checkout. `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help run cluster cluster-add build test test-clients test-spark test-apps test-faults soak fuzz forge sim bench-one-node bench-paging bench-storage bench-protocol bench-cluster bench-paging-cluster bench-goodput bench-streaming

MEMORY ?= 2G

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1#\2/p' $(MAKEFILE_LIST) | column -t -s '#'

run: build ## build a release binary, start a node on 127.0.0.1 with its data in ./data (MEMORY=2G)
	exec target/release/messina serve --data-dir data --memory $(MEMORY)

cluster: build ## build a release binary, start three nodes on 127.0.0.1, .2 and .3 with data in ./data/cluster
	exec tools/cluster/run

cluster-add: build ## add a node to the cluster that runs (NODE=4 restarts added node 4)
	exec tools/cluster/add $(if $(NODE),--node $(NODE))

build: ## build the release binary, target/release/messina
	cargo build --release -p messina

test: ## run format, lints, crate dependencies, text checks, unit tests, short simulation, short client and crash tests
	tests/run test

test-clients: ## run all client programs: cqlsh, drivers of five languages, DSBulk, latte, load generator, sstable tools
	tests/run clients

test-spark: ## run a Spark job in local mode on the Cassandra connector (downloads 300 MB once)
	tests/run spark

test-apps: ## run nine applications on three nodes, one of which is killed: Pekko, Spring Data, Jaeger, ...
	tests/run apps

test-faults: ## inject faults into real nodes: no descriptors, damaged files, incomplete requests, full disks, changed addresses
	tests/run faults

soak: ## run long crash tests and a long simulation (SOAK_MINUTES=30)
	tests/run soak

fuzz: ## fuzz every parser (FUZZ_SECONDS=60 for each)
	tests/run fuzz

forge: ## check that forged paging states are refused (PAGING_STATES, by default 10 million)
	PAGING_STATES=$${PAGING_STATES:-10000000} cargo test --release -p messina-fuzz --test paging_states -- --nocapture

sim: ## simulate clusters and crashes with thousands of seeds (SEEDS, SECONDS, TRIALS, EVERY)
	tests/run sim

bench-one-node: ## compare one node with Cassandra 5; prints JSON (QUICK=1)
	bench/one-node

bench-paging: ## compare paging with and without queriers, and with Cassandra 5; prints JSON (QUICK=1)
	bench/paging

bench-storage: ## measure writes, reads from disk, compaction, memory (MINUTES=60); prints JSON (QUICK=1)
	bench/storage

bench-cluster: ## compare three nodes with three of Cassandra 5, also with a node killed; prints JSON (QUICK=1)
	bench/cluster

bench-paging-cluster: ## compare paging on three nodes with three of Cassandra 5; prints JSON (QUICK=1)
	bench/paging-cluster

bench-goodput: ## measure the throughput of other clients while hot partitions are overloaded; prints JSON (QUICK=1)
	bench/goodput

bench-streaming: ## measure how fast tablets move between two nodes; prints JSON (QUICK=1)
	bench/streaming

bench-protocol: ## measure protocol 5, TLS, parsing and prepared statements; prints JSON (QUICK=1)
	bench/protocol
