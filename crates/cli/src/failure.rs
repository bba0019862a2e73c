//! The reason why a command failed, and the exit status of the process.

/// The exit status if a time limit has passed, as of `timeout`.
pub(crate) const TIMED_OUT: u8 = 124;

/// The failure of a command.
pub struct Failure {
    /// Printed, unless it is empty.
    pub(crate) why: String,
    pub(crate) exit_status: u8,
}

impl Failure {
    /// A failure with the usual exit status 1.
    pub fn new(why: impl Into<String>) -> Failure {
        Failure { why: why.into(), exit_status: 1 }
    }
}

impl<E: std::fmt::Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::new(error.to_string())
    }
}
