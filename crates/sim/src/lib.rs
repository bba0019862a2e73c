//! Simulation of a node and of clusters, and checkers of their guarantees to clients. The disks and
//! the network are simulated, and fail as the seed decides.
//!
//! One node: [`model`] computes what statements do to a partition, [`workload`] makes seeded
//! statements, [`reads`] reads the table in every way. [`checker`] keeps the states that are
//! possible after each fault. [`node`] runs one incarnation of a node with its clients,
//! [`scenario`] several incarnations on one disk.
//!
//! Clusters: [`cluster`] runs several nodes and their network. A seed gives the same scenario each
//! time. The crate is empty without the feature `sim`.
#![cfg(feature = "sim")]

pub mod checker;
pub mod cluster;
pub mod layers;
pub mod model;
pub mod node;
pub mod reads;
pub mod scenario;
pub mod workload;
