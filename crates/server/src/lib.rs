//! The native protocol, administration, metrics, configuration, and the life of a node.
//!
//! [`protocol`] is the wire as pure functions; [`connection`] is the loop that reads, asks the language and writes.
//! This crate contains no query and no storage logic.

pub mod config;
pub mod connection;
pub mod events;
pub mod protocol;
