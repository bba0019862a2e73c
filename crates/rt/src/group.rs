//! Scheduling groups: which kind of work a task or a disk request belongs to.
//!
//! A task belongs to the group of the task that spawned it, unless it is spawned in another one. A call to another shard
//! carries the caller's group; a request to another node carries it in its header. While several groups have ready tasks,
//! each gets the shard's time in proportion to its shares; a group that is alone gets all of it.

/// A kind of work that shares a shard's time and its disk with the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Group {
    /// Raft, pings, topology, administration: little work, on which the cluster depends.
    Control = 0,
    /// Statements of clients, at the coordinator and at replicas.
    Statement = 1,
    /// Scans of whole tables.
    Scan = 2,
    /// Flush, compaction, streaming, repair, hint replay.
    Maintenance = 3,
}

impl Group {
    /// How many groups there are.
    pub const COUNT: usize = 4;
    /// All groups, by their numbers. Of groups that are equally entitled the first is served first.
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

    /// Whether a client or the cluster waits for the group's work. Other groups have no claim to time in which they had
    /// nothing to do, and the shard looks at its sockets between any two of their polls.
    pub fn is_urgent(self) -> bool {
        matches!(self, Group::Control | Group::Statement)
    }

    /// The shares a group starts with.
    pub(crate) fn shares(self) -> u32 {
        match self {
            Group::Control => 20_000,
            Group::Statement => STATEMENT_SHARES,
            Group::Scan => 250,
            Group::Maintenance => 250,
        }
    }
}

/// The shares of statements, which those of other groups are measured against.
pub(crate) const STATEMENT_SHARES: u32 = 1_000;
