//! The language: text to statement to plan to answer.
//!
//! [`syntax`] turns text into a statement; [`plan`] works out, once, everything of it that does not depend on values; a plan is
//! executed by [`select`], [`modify`], [`batch`], [`schema`] or [`describe`]. [`processor`] is the door, and keeps plans. It
//! knows nothing of sockets or frames: [`api`] is the border to the server above.
//! Reading order: api, error, guardrails, syntax, term, restrictions, select, modify, batch, plan, footprint, prepared, processor.

pub mod api;
pub mod attributes;
pub mod authorize;
pub mod batch;
pub mod describe;
pub mod dialect;
pub mod error;
mod footprint;
pub mod fragments;
pub mod guardrails;
pub mod large_data;
pub mod modify;
pub mod plan;
pub mod prepared;
pub mod processor;
pub mod request;
pub mod restrictions;
pub mod schema;
pub mod select;
pub mod slow_log;
pub mod source;
pub mod statistics;
pub mod syntax;
pub mod system;
pub mod term;
pub mod trace_store;

pub use api::{Answer, AnswerKind, Batch, ClientState, Prepared, QueryParams};
pub use error::Error;
pub use processor::Processor;
pub use request::Config;
pub use slow_log::SlowLogSettings;
pub use statistics::StatementNumbers;
