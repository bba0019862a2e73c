//! Scheduling groups: the kinds of work that tasks and disk requests belong to.
//!
//! A task belongs to the group of the task that spawned it, unless it is spawned in another one. A
//! call to another shard carries the caller's group. A request to another node carries it as the
//! verb (`internode::Verb`). While several groups have ready tasks, each gets the shard's time in
//! proportion to its shares. A group without competition gets all of it.

/// A kind of work that shares a shard's time and its disk with the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Group {
    /// Raft, pings, topology, administration: little work, on which the cluster depends.
    Control = 0,
    /// Client statements, at the coordinator and at replicas.
    Statement = 1,
    /// Scans of whole tables.
    Scan = 2,
    /// Flush, compaction, streaming, repair, hint replay.
    Maintenance = 3,
}

impl Group {
    /// The number of groups.
    pub const COUNT: usize = 4;
    /// All groups, by their numbers. Of groups with equal claims, the first is served first.
    pub const ALL: [Group; Group::COUNT] = [Group::Control, Group::Statement, Group::Scan, Group::Maintenance];

    /// The group's name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Group::Control => "control",
            Group::Statement => "statement",
            Group::Scan => "scan",
            Group::Maintenance => "maintenance",
        }
    }

    /// Whether a client or the cluster waits for the group's work. Other groups get no credit for
    /// time in which they had no work, and the shard polls its sockets between any two of their
    /// polls.
    pub fn is_urgent(self) -> bool {
        matches!(self, Group::Control | Group::Statement)
    }

    /// The initial shares of a group.
    pub(crate) fn shares(self) -> u32 {
        match self {
            Group::Control => 20_000,
            Group::Statement => STATEMENT_SHARES,
            Group::Scan => 250,
            Group::Maintenance => 250,
        }
    }
}

/// The shares of statements, the reference for the shares of other groups.
pub(crate) const STATEMENT_SHARES: u32 = 1_000;
