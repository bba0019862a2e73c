//! The errors of calls, and the reasons for refusals of requests and connections.

use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// Why a call has no response.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CallError {
    /// The address book does not have the node.
    #[error("the address of node {0} is not known")]
    NoAddress(model::HostId),
    /// The node is known to be down.
    #[error("node {0} is down")]
    Down(model::HostId),
    /// There is no connection, and connecting failed.
    #[error("{0}")]
    Unreachable(Arc<str>),
    /// One of the two nodes rejected the connection.
    #[error("{0}")]
    Rejected(Rejection),
    /// Too many calls wait for the connection.
    #[error("too many requests wait for the node already")]
    Overloaded,
    /// The body is longer than the limit.
    #[error("a message of {len} bytes, more than {limit}")]
    TooLarge {
        /// Its length in bytes.
        len: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// This node is stopping.
    #[error("this node is stopping")]
    Stopping,
    /// The deadline passed.
    #[error("no response in time")]
    Timeout,
    /// The connection ended before the response arrived.
    #[error("the connection was lost: {0}")]
    Lost(Arc<str>),
    /// The other node refused the request.
    #[error("{0}")]
    Refused(Refusal),
}

impl CallError {
    /// Whether the other node may have carried out the request. If false, it certainly has not.
    pub fn may_have_been_done(&self) -> bool {
        match self {
            CallError::Timeout | CallError::Lost(_) => true,
            CallError::Refused(refusal) => refusal.code == RefusalCode::Failed || refusal.code == RefusalCode::Late,
            _ => false,
        }
    }
}

/// Why a request is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RefusalCode {
    /// The attempt failed.
    Failed = 0,
    /// The verb has no handler, or none yet.
    UnknownVerb = 1,
    /// The node is stopping.
    Stopping = 2,
    /// The deadline had passed.
    Late = 3,
    /// The request could not be decoded.
    Malformed = 4,
    /// The node has too much work.
    Overloaded = 5,
    /// The data that the request needs is damaged. Another attempt would fail as well.
    Damaged = 6,
}

impl RefusalCode {
    /// Decodes the number of a code; unknown numbers become `Failed`.
    pub fn from_code(code: u8) -> RefusalCode {
        use RefusalCode::{Damaged, Failed, Late, Malformed, Overloaded, Stopping, UnknownVerb};
        let known = [Failed, UnknownVerb, Stopping, Late, Malformed, Overloaded, Damaged];
        known.into_iter().find(|known| *known as u8 == code).unwrap_or(Failed)
    }
}

/// The refusal of a request.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{text}")]
pub struct Refusal {
    /// Its code.
    pub code: RefusalCode,
    /// Its reason.
    pub text: Arc<str>,
}

impl Refusal {
    /// A refusal with [`RefusalCode::Failed`].
    pub fn failed(why: impl fmt::Display) -> Refusal {
        Refusal::new(RefusalCode::Failed, why)
    }

    /// A refusal with [`RefusalCode::Malformed`].
    pub fn malformed(why: impl fmt::Display) -> Refusal {
        Refusal::new(RefusalCode::Malformed, why)
    }

    /// A refusal with a code.
    pub fn new(code: RefusalCode, why: impl fmt::Display) -> Refusal {
        Refusal { code, text: why.to_string().into() }
    }
}

/// Why a connection is rejected. Numbers are never reused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RejectionCode {
    /// A reason that this release does not know.
    Other = 0,
    /// The nodes are of different clusters.
    Cluster = 1,
    /// The nodes have no protocol version in common.
    Version = 2,
    /// Another node is at this address.
    Host = 3,
    /// The node has connected to itself.
    Itself = 4,
    /// The node has left the cluster.
    Left = 5,
    /// The connection must be encrypted.
    NeedsTls = 6,
    /// The node does not support encryption.
    NoTls = 7,
    /// The node is stopping, or not yet up.
    NotServing = 8,
    /// The handshake could not be decoded.
    Garbage = 9,
    /// TLS failed: certificates do not match, or are missing.
    Tls = 10,
    /// Another node has the same host id.
    Twin = 11,
}

impl RejectionCode {
    /// Decodes the number of a code; unknown numbers become `Other`.
    pub fn from_code(code: u8) -> RejectionCode {
        use RejectionCode::*;
        let known = [Cluster, Version, Host, Itself, Left, NeedsTls, NoTls, NotServing, Garbage, Tls, Twin];
        known.into_iter().find(|known| *known as u8 == code).unwrap_or(Other)
    }
}

/// The rejection of a connection.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{text}")]
pub struct Rejection {
    /// Its code.
    pub code: RejectionCode,
    /// Its reason, for the operators of both nodes.
    pub text: Arc<str>,
}

impl Rejection {
    /// A rejection with a code.
    pub fn new(code: RejectionCode, why: impl fmt::Display) -> Rejection {
        Rejection { code, text: why.to_string().into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_name_what_they_always_named() {
        for code in 0..=u8::MAX {
            let (refusal, rejection) = (RefusalCode::from_code(code), RejectionCode::from_code(code));
            assert!(refusal as u8 == code || (code > 5 && refusal == RefusalCode::Failed));
            assert!(rejection as u8 == code || (code > 11 && rejection == RejectionCode::Other));
        }
    }

    #[test]
    fn only_what_was_sent_may_have_been_done() {
        let refused = |code| CallError::Refused(Refusal::new(code, ""));
        assert!(CallError::Timeout.may_have_been_done() && CallError::Lost("".into()).may_have_been_done());
        assert!(refused(RefusalCode::Failed).may_have_been_done());
        assert!(!refused(RefusalCode::UnknownVerb).may_have_been_done());
        assert!(!CallError::Unreachable("".into()).may_have_been_done() && !CallError::Stopping.may_have_been_done());
    }
}
