//! The admin REST interface, under ScyllaDB's paths.
//!
//! [`rest`] maps paths to [`operations`], which call the shards. Errors are JSON:
//! `{message, code}`. All administrative commands use this interface: `messina admin` is a client
//! of it. It has no authentication, so it listens on loopback unless configured otherwise.

pub mod compactions;
mod extract;
pub mod nodes;
pub mod operations;
pub mod process;
pub mod rest;
pub mod ring;
pub mod slow_query;
pub mod snapshots;
pub mod system_tables;
pub mod table_stats;
pub mod tables;

pub use rest::{AdminState, LogControl, router};
