//! Why a node did not start.

use thiserror::Error;

/// Why a node did not start. The texts are for the operator.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct StartError(pub String);

impl StartError {
    pub(crate) fn because(error: impl std::fmt::Display) -> Self {
        StartError(error.to_string())
    }

    /// The Raft group has failed on this node.
    pub(crate) fn of_group(why: &str) -> Self {
        StartError(format!("this node can no longer apply changes of the metadata: {why}"))
    }
}
