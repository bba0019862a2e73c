//! The admin REST interface, under ScyllaDB's paths.
//!
//! [`rest`] maps paths to [`operations`], which ask the shards. Errors are JSON `{message, code}`. Every administrative command
//! goes this way: `messina admin` is a client of it. No authentication: it listens on loopback unless told otherwise.

pub mod operations;
pub mod rest;
pub mod snapshots;

pub use rest::{AdminState, LogControl, router};
