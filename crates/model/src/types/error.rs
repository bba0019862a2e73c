//! The error of a value: bytes that are not of their type, or text that is not a value.

use std::fmt::Display;

/// Bytes or text that are not a value of the wanted type. The client (or a file) caused it, and the
/// message may be sent to the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ValueError {
    message: Box<str>,
}

impl ValueError {
    /// An error with this message.
    pub fn new(message: impl Into<String>) -> Self {
        ValueError { message: message.into().into_boxed_str() }
    }

    /// The same error with its location in front.
    pub(crate) fn inside(self, place: impl Display) -> Self {
        ValueError::new(format!("{place}: {self}"))
    }

    #[cold]
    pub(crate) fn truncated() -> Self {
        ValueError::new("Not enough bytes to read the value")
    }
}
