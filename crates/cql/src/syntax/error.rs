//! The syntax error: where a text is not valid CQL, and why.

/// A syntax error. As in ScyllaDB's messages, lines count from 1, columns (in characters) from 0.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}:{column} {message}")]
pub struct SyntaxError {
    /// The message, without the position.
    pub message: String,
    /// Line of the offending token, from 1.
    pub line: u32,
    /// Characters before the offending token on its line.
    pub column: u32,
}

impl SyntaxError {
    /// An error at a byte offset of the text. An offset past the end means the end.
    pub(super) fn at(source: &str, offset: usize, message: String) -> SyntaxError {
        let before = &source[..offset.min(source.len())];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line = before.bytes().filter(|b| *b == b'\n').count() + 1;
        let column = before[line_start..].chars().count();
        SyntaxError { message, line: line as u32, column: column as u32 }
    }
}
