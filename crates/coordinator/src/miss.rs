//! Why a replica gave no answer, and what that means for its request.

use replica::ReplicaError;

/// Why a replica's answer did not come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unreached {
    /// It was not asked: its node is down or refuses.
    Down(String),
    /// The connection was lost before the answer: it may have done what was asked.
    Lost(String),
    /// Its time ran out.
    TimedOut,
    /// The other node, or this one, refuses the message itself: sending it again would end the same
    /// way.
    Refused(String),
}

/// Why a replica gave no answer that helps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Miss {
    /// It said why not.
    Refused(ReplicaError),
    /// Nothing came.
    Unreached(Unreached),
}

/// What a miss means for the error that the client gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MissClass {
    /// The replica did not get the request: it counts as a node that is down.
    NotSent,
    /// The replica got the request, or may have, and its answer did not come: a timeout.
    Unanswered,
    /// The replica answered that it failed. Only this is a failure for the client.
    Failed,
}

impl Miss {
    /// What it means for the error that the client gets.
    pub fn class(&self) -> MissClass {
        match self {
            Miss::Unreached(Unreached::Down(_)) => MissClass::NotSent,
            Miss::Unreached(Unreached::Lost(_) | Unreached::TimedOut) => MissClass::Unanswered,
            Miss::Refused(ReplicaError::Timeout) => MissClass::Unanswered,
            Miss::Unreached(Unreached::Refused(_)) | Miss::Refused(_) => MissClass::Failed,
        }
    }

    /// Whether the replica refused it because it was routed by outdated metadata.
    pub fn is_stale(&self) -> bool {
        matches!(self, Miss::Refused(ReplicaError::Stale(_)))
    }

    /// Whether the same write may well succeed later: what failed was not the write itself. `NoSuchTable` does not
    /// decide it: whether the table is gone for good, the metadata say.
    pub fn may_pass(&self) -> bool {
        match self {
            Miss::Unreached(unreached) => !matches!(unreached, Unreached::Refused(_)),
            Miss::Refused(error) => !matches!(error, ReplicaError::NoSuchTable | ReplicaError::Rejected(_)),
        }
    }

    /// What went wrong, for errors.
    pub fn why(&self) -> String {
        match self {
            Miss::Refused(error) => error.to_string(),
            Miss::Unreached(Unreached::Down(why) | Unreached::Lost(why) | Unreached::Refused(why)) => why.clone(),
            Miss::Unreached(Unreached::TimedOut) => ReplicaError::Timeout.to_string(),
        }
    }
}
