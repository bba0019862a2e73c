//! Agreement on the metadata: one Raft group of the whole cluster, by openraft.
//!
//! The group orders opaque commands and hands them to a [`Machine`] on every node, in the same order; it knows nothing of what they
//! say. Reading order: [`Machine`] and [`Transport`] are what it is given, [`Group`] what it gives; `stored` is what it writes down and
//! sends, `store` and `machine` join openraft to the engine's log and to the machine (`saved` keeps them in order), `network` to the other nodes; `election` decides
//! when a node stands for election; `divergence` finds members that were started with an older log. A node alone is a group of one voter: it leads from its first moment on and waits for nobody.
//!
//! Invariants: a command was written down by a majority of the voters before it is applied anywhere (`raft_safety`); an error of the
//! disk ends the group on this node, and the node with it. The data plane must never wait for the group.

mod divergence;
mod election;
mod group;
mod machine;
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

/// A node as openraft knows it.
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

/// A command: bytes that the machine understands.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Command(pub Vec<u8>);

openraft::declare_raft_types!(
    /// What openraft is told of our types.
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
