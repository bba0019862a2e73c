//! What is wrong with a value: bytes that are not of their type, or text that does not spell a value.

use std::fmt::Display;

/// Bytes or text that do not make a value of the wanted type. Always the client's (or a file's) doing; the message
/// is fit to be sent to it.
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

    /// The same error, said to be inside `place`.
    pub(crate) fn inside(self, place: impl Display) -> Self {
        ValueError::new(format!("{place}: {self}"))
    }

    #[cold]
    pub(crate) fn truncated() -> Self {
        ValueError::new("Not enough bytes to read the value")
    }
}
