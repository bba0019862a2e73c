//! The language: text to statement to plan to answer.
//!
//! [`syntax`] turns text into a statement. Knows nothing of sockets or frames: [`api`] is the border to the server above.

pub mod api;
pub mod error;
pub mod processor;
pub mod syntax;

pub use api::{Answer, AnswerKind, Batch, ClientState, Prepared, QueryParams};
pub use error::Error;
pub use processor::Processor;
