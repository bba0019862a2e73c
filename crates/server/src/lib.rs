//! The native protocol, administration, metrics, configuration, and the life of a node.
//!
//! [`protocol`] is the wire as pure functions; [`connection`] is the loop that reads, asks the
//! language and writes; [`events`] go the other way. [`config`] is what an operator sets, [`admin`]
//! and [`metrics`] are what one sees, over [`http`]. [`stack`] starts the layers of a node on each
//! other, with [`membership`] for its way into a cluster. [`node`] opens the ports and is the life
//! of a node ([`client_service`]: the ports for clients); [`stopping`] is its end. [`memory`]
//! divides what it may use. This crate contains no query and no storage logic.

pub mod admin;
pub mod client_service;
pub mod config;
pub mod connection;
pub mod events;
pub mod http;
mod inventory;
mod layers;
mod local_sources;
mod machine_checks;
pub mod membership;
pub mod memory;
pub mod metrics;
pub mod node;
mod node_events;
mod old_logs;
pub mod protocol;
mod report;
mod schema_events;
pub mod seeds;
pub mod services;
pub mod stack;
mod stack_config;
mod start_error;
pub mod stopping;
