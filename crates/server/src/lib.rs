//! The native protocol, administration, metrics, configuration, and the lifecycle of a node.
//!
//! [`protocol`] encodes and decodes frames (pure). [`connection`] is the loop that reads requests,
//! passes them to the query processor and writes answers. [`events`] sends events to clients.
//! [`config`] has the settings. [`admin`] and [`metrics`] serve administration and metrics over
//! [`http`]. [`stack`] starts and stops the layers of a node, [`membership`] joins its cluster, and
//! [`node_ops`] makes it leave. [`node`] opens the ports and runs a node; [`client_service`] has
//! the ports for clients, [`stopping`] the time limit of a stop. [`memory`] divides the node's
//! memory.
//!
//! This crate contains no query and no storage logic.

pub mod admin;
pub mod client_service;
pub mod config;
pub mod connection;
mod counter_id;
pub mod events;
mod failures;
pub mod http;
mod inventory;
mod layers;
mod local_sources;
mod machine_checks;
pub mod membership;
pub mod memory;
mod memory_guard;
pub mod metrics;
pub mod node;
mod node_events;
pub mod node_ops;
mod old_logs;
pub mod protocol;
mod remote;
mod report;
mod runs;
mod schema_events;
pub mod seeds;
pub mod services;
mod signals;
pub mod stack;
mod stack_config;
mod start_error;
pub mod stopping;
mod wire;
