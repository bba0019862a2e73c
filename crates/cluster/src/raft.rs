//! Agreement on the metadata: one Raft group for the cluster, built on openraft.
//!
//! The group orders opaque commands and passes them to a [`Machine`] on every node, in the same
//! order. It does not interpret commands. A single node is a group of one voter: it is the leader
//! from the start and waits for no other node.
//!
//! Reading order:
//!
//! - The group uses [`Machine`] and [`Transport`]. [`Group`] is its interface; `members` has its
//!   learners and voters.
//! - `stored` has the stored and sent forms of entries, votes and snapshots.
//! - `store` adapts openraft's log to the engine's, `machine` its state machine to [`Machine`].
//!   `saved` orders snapshots and log purges.
//! - `network` adapts openraft's network to [`Transport`].
//! - `election` decides when a node starts an election.
//! - `divergence` detects members that were started with an older log.
//!
//! Invariants: a command is durable on a majority of the voters before any node applies it
//! (`raft_safety`). A disk error ends the group on this node, and then the node. The data plane
//! must never wait for the group.

mod divergence;
mod election;
mod group;
mod machine;
mod members;
mod network;
mod runtime;
mod saved;
mod store;
mod stored;
mod transport;

pub use group::{Group, GroupError, Proposed};
pub use machine::{Machine, Outcome};
pub use network::{CallFailed, Transport};
pub use stored::{Opened, open, open_to_join};
pub use transport::connect;

use model::id::HostId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::Cursor;
use uuid::Uuid;

/// A node in openraft's types.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Member(pub Uuid);

impl From<HostId> for Member {
    fn from(host: HostId) -> Self {
        Member(host.0)
    }
}

impl From<Member> for HostId {
    fn from(member: Member) -> Self {
        HostId(member.0)
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A command: bytes that the machine interprets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Command(pub Vec<u8>);

openraft::declare_raft_types!(
    /// The types that openraft is instantiated with.
    pub Types:
        D = Command,
        R = Outcome,
        NodeId = Member,
        Node = openraft::EmptyNode,
        Entry = openraft::Entry<Types>,
        SnapshotData = Cursor<Vec<u8>>,
        AsyncRuntime = runtime::Shard,
);

type LogId = openraft::LogId<Member>;
type Vote = openraft::Vote<Member>;
type Entry = openraft::Entry<Types>;
type Membership = openraft::StoredMembership<Member, openraft::EmptyNode>;
type StorageError = openraft::StorageError<Member>;

#[cfg(test)]
mod older_log_tests;
#[cfg(test)]
mod tests;
