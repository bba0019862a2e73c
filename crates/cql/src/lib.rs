//! The query processor: turns the text of a statement into a plan, executes it, and returns the
//! answer.
//!
//! [`syntax`] parses text into a statement. [`plan`] does all work that does not depend on bound
//! values, once per statement. [`select`], [`modify`], [`batch`], [`schema`] and [`describe`]
//! execute plans. [`processor`] is the entry, and caches plans.
//!
//! The crate knows no sockets and no frames. [`api`] is its interface to the protocol server above.
//!
//! Reading order: api, error, guardrails, syntax, pace, term, restrictions, select, modify, batch,
//! plan, footprint, prepared, processor.

pub mod api;
pub mod attributes;
pub mod authorize;
pub mod batch;
mod batch_limit;
pub mod checked;
pub mod describe;
pub mod dialect;
pub mod error;
mod footprint;
pub mod fragments;
pub mod guardrails;
pub mod large_data;
pub mod modify;
mod pace;
pub mod plan;
pub mod prepared;
pub mod processor;
mod rate_limit;
pub mod rate_limit_error;
pub mod request;
pub mod restrictions;
pub mod schema;
pub mod select;
pub mod source;
pub mod statistics;
pub mod syntax;
pub mod system;
pub mod term;

pub use api::{Batch, ClientState, Prepared, QueryParams, ResultKind, StatementResult};
pub use error::Error;
pub use processor::{Processor, ProcessorShards, SlowLogSettings};
pub use request::Config;
pub use statistics::StatementMetrics;
