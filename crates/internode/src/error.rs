//! Why a call was not answered, and what a node says that will not.

use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// Why a call has no answer.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CallError {
    /// The address book does not have the node.
    #[error("the address of node {0} is not known")]
    NoAddress(model::HostId),
    /// The node is known to be down.
    #[error("node {0} is down")]
    Down(model::HostId),
    /// There is no connection, and none came about.
    #[error("{0}")]
    Unreachable(Arc<str>),
    /// The other side, or we, would not have the connection.
    #[error("{0}")]
    Rejected(Rejection),
    /// Too many calls wait for the connection already.
    #[error("too many requests wait for the node already")]
    Overloaded,
    /// The body is larger than a frame may be.
    #[error("a message of {len} bytes, more than {limit}")]
    TooLarge {
        /// Its length.
        len: usize,
        /// What is allowed.
        limit: usize,
    },
    /// This node stops.
    #[error("this node is stopping")]
    Stopping,
    /// The deadline passed.
    #[error("no answer in time")]
    Timeout,
    /// The connection ended before the answer came.
    #[error("the connection was lost: {0}")]
    Lost(Arc<str>),
    /// The other side answered that it will not.
    #[error("{0}")]
    Refused(Refusal),
}

impl CallError {
    /// Whether the other side may have carried out what was asked: it certainly has not if this is false.
    pub fn may_have_been_done(&self) -> bool {
        match self {
            CallError::Timeout | CallError::Lost(_) => true,
            CallError::Refused(refusal) => refusal.code == RefusalCode::Failed || refusal.code == RefusalCode::Late,
            _ => false,
        }
    }
}

/// Why a request is not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RefusalCode {
    /// It was tried, and did not work out.
    Failed = 0,
    /// Nobody is there for this verb, or not yet.
    UnknownVerb = 1,
    /// The node stops.
    Stopping = 2,
    /// Its time had run out.
    Late = 3,
    /// The request could not be understood.
    Malformed = 4,
    /// Too much is being worked on.
    Overloaded = 5,
}

impl RefusalCode {
    /// From the wire's number; one that is not known is a failure.
    pub fn from_code(code: u8) -> RefusalCode {
        use RefusalCode::{Failed, Late, Malformed, Overloaded, Stopping, UnknownVerb};
        let known = [Failed, UnknownVerb, Stopping, Late, Malformed, Overloaded];
        known.into_iter().find(|known| *known as u8 == code).unwrap_or(Failed)
    }
}

/// A request is not carried out.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{text}")]
pub struct Refusal {
    /// Of which kind.
    pub code: RefusalCode,
    /// Why.
    pub text: Arc<str>,
}

impl Refusal {
    /// It was tried, and did not work out.
    pub fn failed(why: impl fmt::Display) -> Refusal {
        Refusal::new(RefusalCode::Failed, why)
    }

    /// The request could not be understood.
    pub fn malformed(why: impl fmt::Display) -> Refusal {
        Refusal::new(RefusalCode::Malformed, why)
    }

    /// With a code.
    pub fn new(code: RefusalCode, why: impl fmt::Display) -> Refusal {
        Refusal { code, text: why.to_string().into() }
    }
}

/// Why two nodes have no connection. Numbers are never used again for something else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RejectionCode {
    /// A reason that this release does not know.
    Other = 0,
    /// Another cluster.
    Cluster = 1,
    /// No version of the protocol that both speak.
    Version = 2,
    /// Another node is at this address.
    Host = 3,
    /// The node has reached itself.
    Itself = 4,
    /// The node has left the cluster for ever.
    Left = 5,
    /// The connection must be encrypted.
    NeedsTls = 6,
    /// The connection cannot be encrypted.
    NoTls = 7,
    /// The node is stopping, or not yet up.
    NotServing = 8,
    /// What was said could not be understood.
    Garbage = 9,
    /// Encrypting failed: certificates do not fit, or are not there.
    Tls = 10,
    /// Another node has the same id.
    Twin = 11,
}

impl RejectionCode {
    /// From the wire's number.
    pub fn from_code(code: u8) -> RejectionCode {
        use RejectionCode::*;
        let known = [Cluster, Version, Host, Itself, Left, NeedsTls, NoTls, NotServing, Garbage, Tls, Twin];
        known.into_iter().find(|known| *known as u8 == code).unwrap_or(Other)
    }
}

/// Two nodes have no connection, and why.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{text}")]
pub struct Rejection {
    /// Of which kind.
    pub code: RejectionCode,
    /// Why, for the operators of both.
    pub text: Arc<str>,
}

impl Rejection {
    /// With a code.
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
