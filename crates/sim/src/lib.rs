//! A node, or a whole cluster, on the simulated machine, disks and network at our mercy, and checkers that say whether promises are kept.
//!
//! [`model`] says what statements do to a partition, [`workload`] makes seeded statements, [`reads`] reads back in every way,
//! [`checker`] knows which states are possible after which accidents; [`node`] is one life of a node and its clients, [`story`]
//! several lives on one disk; [`cluster`] is several nodes and their network. A seed gives the same story each time. Everything here exists only under feature `sim`.
#![cfg(feature = "sim")]

pub mod checker;
pub mod cluster;
pub mod model;
pub mod node;
pub mod reads;
pub mod story;
pub mod workload;
