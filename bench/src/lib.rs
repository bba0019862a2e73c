//! Measurements inside one process: a node of one shard without ports, driven frame by frame.
//!
//! Side-by-side measurements of whole processes are the scripts beside this crate (`make bench-one-node`).

pub mod allocations;
pub mod harness;
