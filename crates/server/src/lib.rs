//! The native protocol, administration, metrics, configuration, and the life of a node.
//!
//! [`protocol`] is the wire as pure functions; [`connection`] is the loop that reads, asks the language and writes; [`events`]
//! go the other way. [`config`] is what an operator sets, [`admin`] and [`metrics`] are what one sees, over [`http`].
//! [`stack`] stacks the floors of a node upon each other; [`node`] puts the ports on top and is its life.
//! This crate contains no query and no storage logic.

pub mod admin;
pub mod config;
pub mod connection;
pub mod events;
pub mod http;
pub mod metrics;
pub mod node;
pub mod protocol;
pub mod stack;
