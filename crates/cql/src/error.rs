//! All errors that a client can get. Only this file assigns their protocol codes.

use crate::api::Consistency;
use crate::rate_limit_error::RateLimitError;
use model::hex;
use model::total::TotalError;
use model::types::shortened;
use std::net::IpAddr;
use thiserror::Error;

/// The kind of a failed write, as the protocol names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum WriteType {
    Simple,
    Batch,
    UnloggedBatch,
    Counter,
    BatchLog,
    View,
    Cdc,
}

impl WriteType {
    /// The name in the protocol.
    pub fn name(self) -> &'static str {
        match self {
            WriteType::Simple => "SIMPLE",
            WriteType::Batch => "BATCH",
            WriteType::UnloggedBatch => "UNLOGGED_BATCH",
            WriteType::Counter => "COUNTER",
            WriteType::BatchLog => "BATCH_LOG",
            WriteType::View => "VIEW",
            WriteType::Cdc => "CDC",
        }
    }
}

/// An error for the client. Its `Display` is the message.
#[derive(Clone, PartialEq, Debug, Error)]
#[allow(missing_docs)]
pub enum Error {
    #[error("{0}")]
    Server(String),
    #[error("{0}")]
    Protocol(String),
    #[error("{0}")]
    BadCredentials(String),
    #[error("Cannot achieve consistency level for cl {}. Requires {required}, alive {alive}", .consistency.name())]
    Unavailable { consistency: Consistency, required: i32, alive: i32 },
    #[error("{0}")]
    Overloaded(String),
    /// A replica refused the request. Its text is formatted when the frame is written.
    #[error(transparent)]
    ReplicaOverloaded(replica::Overload),
    #[error("{0}")]
    Bootstrapping(String),
    #[error("{0}")]
    Truncate(String),
    #[error("Operation timed out for {target} - received only {received} responses from {required} CL={}.", .consistency.name())]
    WriteTimeout { target: String, consistency: Consistency, received: i32, required: i32, kind: WriteType },
    #[error("Operation timed out for {target} - received only {received} responses from {required} CL={}.", .consistency.name())]
    ReadTimeout { target: String, consistency: Consistency, received: i32, required: i32, data_present: bool },
    #[error("Operation failed for {target} - received {received} responses and {failures} failures from {required} CL={}: {why}", .consistency.name())]
    ReadFailure {
        target: String,
        consistency: Consistency,
        received: i32,
        required: i32,
        failures: i32,
        /// The addresses of the replicas that failed. Empty if they are on this node.
        nodes: Vec<IpAddr>,
        data_present: bool,
        why: String,
    },
    #[error("Operation failed for {target} - received {received} responses and {failures} failures from {required} CL={}: {why}", .consistency.name())]
    WriteFailure {
        target: String,
        consistency: Consistency,
        received: i32,
        required: i32,
        failures: i32,
        /// The addresses of the replicas that failed. Empty if they are on this node.
        nodes: Vec<IpAddr>,
        kind: WriteType,
        why: String,
    },
    #[error("{message}")]
    FunctionFailure { keyspace: String, function: String, argument_types: Vec<String>, message: String },
    #[error("{0}")]
    Syntax(String),
    #[error("{0}")]
    Unauthorized(String),
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    Configuration(String),
    #[error("{message}")]
    AlreadyExists { keyspace: String, table: String, message: String },
    #[error("No prepared statement with ID {} found.", hex(.0))]
    Unprepared([u8; 16]),
    /// A partition exceeds a rate limit of its table.
    #[error("{0}")]
    RateLimit(RateLimitError),
}

/// The most characters of the message of [`Error::invalid`].
const MAX_MESSAGE: usize = 4_096;

impl Error {
    /// The code in the protocol.
    pub fn code(&self) -> i32 {
        match self {
            Error::Server(_) => 0x0000,
            Error::Protocol(_) => 0x000A,
            Error::BadCredentials(_) => 0x0100,
            Error::Unavailable { .. } => 0x1000,
            Error::Overloaded(_) | Error::ReplicaOverloaded(_) => 0x1001,
            Error::Bootstrapping(_) => 0x1002,
            Error::Truncate(_) => 0x1003,
            Error::WriteTimeout { .. } => 0x1100,
            Error::ReadTimeout { .. } => 0x1200,
            Error::ReadFailure { .. } => 0x1300,
            Error::FunctionFailure { .. } => 0x1400,
            Error::WriteFailure { .. } => 0x1500,
            Error::Syntax(_) => 0x2000,
            Error::Unauthorized(_) => 0x2100,
            Error::Invalid(_) => 0x2200,
            Error::Configuration(_) => 0x2300,
            Error::AlreadyExists { .. } => 0x2400,
            Error::Unprepared(_) => 0x2500,
            Error::RateLimit(_) => 0xF000,
        }
    }

    /// The error for a statement that is syntactically correct but invalid.
    ///
    /// At most [`MAX_MESSAGE`] characters of the message are kept. It may show a large value.
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::Invalid(shortened(message.into(), MAX_MESSAGE))
    }

    /// The error for something that Messina does not support yet.
    pub fn not_supported(what: &str) -> Error {
        Error::Invalid(format!("{what} is not supported yet"))
    }
}

impl From<TotalError> for Error {
    fn from(error: TotalError) -> Error {
        Error::invalid(error.to_string())
    }
}
