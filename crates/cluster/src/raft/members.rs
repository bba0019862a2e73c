//! The members of the group: learners, voters and the leader.

use super::Member;
use super::group::{Group, GroupError, KEPT};
use model::id::HostId;
use openraft::{ChangeMembers, EmptyNode};
use std::collections::BTreeSet;

impl Group {
    /// Adds a node as a learner. Only the leader can.
    pub async fn add(&self, host: HostId) -> Result<(), GroupError> {
        if self.members().contains(&host) {
            return Ok(());
        }
        let added = self.raft.add_learner(host.into(), EmptyNode {}, false).await;
        added.map(drop).map_err(|error| GroupError::Unknown(error.to_string()))
    }

    /// Sets the voters; all must be members. Only the leader can.
    pub async fn set_voters(&self, voters: &BTreeSet<HostId>) -> Result<(), GroupError> {
        let voters: BTreeSet<Member> = voters.iter().copied().map(Member::from).collect();
        // A node that loses its vote stays a learner.
        let changed = self.raft.change_membership(voters, true).await;
        changed.map(drop).map_err(|error| GroupError::Unknown(error.to_string()))
    }

    /// Whether this node gives up the leadership if it leads. In openraft, a leader that has lost
    /// its vote leads on, and each message of it keeps the voters from electing another leader. So
    /// a node that resigns sends no heartbeats, and refuses commands and reads as if it did not
    /// lead: they would cause messages as well.
    pub fn set_resigning(&self, resigns: bool) {
        self.resigns.set(resigns);
        self.raft.runtime_config().heartbeat(!resigns);
    }

    /// Removes members that are not voters. Only the leader can.
    pub async fn remove(&self, hosts: &BTreeSet<HostId>) -> Result<(), GroupError> {
        let members = hosts.iter().copied().map(Member::from).collect();
        let changed = self.raft.change_membership(ChangeMembers::RemoveNodes(members), true).await;
        changed.map(drop).map_err(|error| GroupError::Unknown(error.to_string()))
    }

    /// Whether a member has all of this leader's log, except for at most `KEPT` entries.
    pub fn has_caught_up(&self, host: HostId) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let replication = metrics.replication.as_ref();
        let matched = replication.and_then(|all| all.get(&Member::from(host)).copied().flatten());
        matched.is_some_and(|matched| matched.index + KEPT >= metrics.last_log_index.unwrap_or(0))
    }
}
