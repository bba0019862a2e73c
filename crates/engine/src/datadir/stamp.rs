//! The contents of the stamp of a data directory.

use super::Inventory;
use model::HostId;
use model::id::NodeRun;
use serde::{Deserialize, Serialize};

/// The kind of the sealed text.
pub(super) const KIND: &str = "stamp";

/// The format of data directories that this release writes, and the newest that it opens. It is
/// increased when a release writes something that the one before would misread. 1 was never
/// released.
pub const FORMAT: u32 = 2;

/// The contents of a stamp.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// The node.
    pub host_id: HostId,
    /// The cluster it is part of.
    pub cluster_name: String,
    /// Shards of the last run.
    pub shards: u16,
    /// When the directory was made: microseconds since 1970.
    pub created_micros: i64,
    /// The files that the directory must have. `None` in a new directory, until its first start has
    /// opened all files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inventory: Option<Inventory>,
    /// The last run that the cluster is known to have recorded, and the runs that this node
    /// proposed since then without an answer. Empty if none was ever recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<NodeRun>,
}
