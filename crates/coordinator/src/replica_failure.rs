//! Why a replica did not answer a request, and what that means for the client's error.

use replica::ReplicaError;

/// Why a request was not sent, or its response did not arrive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SendError {
    /// Not sent: the node is down or refuses requests.
    Down(String),
    /// The connection was lost before the response: the replica may have performed the request.
    Lost(String),
    /// The deadline passed.
    TimedOut,
    /// One of the two nodes refuses the message itself. Sending it again would fail again.
    Refused(String),
}

/// The reason, known to the coordinator, why a replica did not perform a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ReplicaFailure {
    /// The replica responded with an error.
    Refused(ReplicaError),
    /// No response arrived.
    Send(SendError),
}

/// The class of a failure, which decides the client's error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FailureClass {
    /// The replica did not receive the request: it counts as a node that is down.
    NotSent,
    /// The replica received the request, or may have, and its response did not arrive: a timeout.
    Unanswered,
    /// The replica responded that it failed. Only this is a failure for the client.
    Failed,
}

impl ReplicaFailure {
    /// The class, which decides the client's error.
    pub fn class(&self) -> FailureClass {
        match self {
            ReplicaFailure::Send(SendError::Down(_)) => FailureClass::NotSent,
            ReplicaFailure::Send(SendError::Lost(_) | SendError::TimedOut) => FailureClass::Unanswered,
            ReplicaFailure::Refused(ReplicaError::Timeout) => FailureClass::Unanswered,
            ReplicaFailure::Send(SendError::Refused(_)) | ReplicaFailure::Refused(_) => FailureClass::Failed,
        }
    }

    /// The failure of a replica that sent another kind of response than `request` ("a read") needs.
    #[cold]
    pub fn unexpected_answer(request: &str) -> ReplicaFailure {
        let why = format!("a replica sent another kind of response to {request}");
        ReplicaFailure::Refused(ReplicaError::Storage(why))
    }

    /// Whether the connection was lost before the response.
    pub fn is_lost(&self) -> bool {
        matches!(self, ReplicaFailure::Send(SendError::Lost(_)))
    }

    /// This failure of a second request, after the connection of the first was lost.
    pub fn into_lost(self) -> ReplicaFailure {
        ReplicaFailure::Send(SendError::Lost(self.why()))
    }

    /// Whether the replica refused the request as routed by outdated metadata.
    pub fn is_stale(&self) -> bool {
        matches!(self, ReplicaFailure::Refused(ReplicaError::Stale(_)))
    }

    /// Whether the replica refused the request by a rate limit.
    pub fn is_rate_limited(&self) -> bool {
        matches!(self, ReplicaFailure::Refused(ReplicaError::RateLimited(_)))
    }

    /// Whether the same write may succeed later: the cause is not the write itself. `NoSuchTable`
    /// does not decide this: the metadata knows whether the table was dropped.
    pub fn may_pass(&self) -> bool {
        match self {
            ReplicaFailure::Send(send_error) => !matches!(send_error, SendError::Refused(_)),
            ReplicaFailure::Refused(error) => {
                !matches!(error, ReplicaError::NoSuchTable | ReplicaError::Rejected(_) | ReplicaError::RateLimited(_))
            }
        }
    }

    /// The reason, for errors and logs.
    pub fn why(&self) -> String {
        match self {
            ReplicaFailure::Refused(error) => error.to_string(),
            ReplicaFailure::Send(SendError::Down(why) | SendError::Lost(why) | SendError::Refused(why)) => why.clone(),
            ReplicaFailure::Send(SendError::TimedOut) => ReplicaError::Timeout.to_string(),
        }
    }
}
