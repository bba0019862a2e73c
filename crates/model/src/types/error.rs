//! The error of a value: bytes that are not of their type, or text that is not a value.

use std::fmt::Display;

/// Bytes or text that are not a value of the wanted type. The client (or a file) caused it, and the
/// message may be sent to the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ValueError {
    message: Box<str>,
}

/// The most characters of a message: the value that it shows may be megabytes long.
pub const MAX_MESSAGE: usize = 1_000;

/// The first `most` characters of a text, with dots behind them if there were more.
pub fn shortened(mut text: String, most: usize) -> String {
    if text.len() > most
        && let Some((end, _)) = text.char_indices().nth(most)
    {
        text.truncate(end);
        text.push_str("...");
        text.shrink_to_fit();
    }
    text
}

impl ValueError {
    /// An error with this message, of which at most [`MAX_MESSAGE`] characters are kept.
    pub fn new(message: impl Into<String>) -> Self {
        ValueError { message: shortened(message.into(), MAX_MESSAGE).into_boxed_str() }
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
