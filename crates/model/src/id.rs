//! Ids as types, so that an id of one kind cannot be used as another kind.

use std::fmt;
use uuid::Uuid;

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl $name {
            /// The id with these 16 bytes, big-endian.
            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(Uuid::from_bytes(bytes))
            }

            /// The 16 bytes, big-endian.
            pub fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }
        }
    };
}

uuid_id!(
    /// A table, until it is dropped. A table that is created again has another id.
    TableId
);
impl TableId {
    /// Whether the id is derived from the table's name (a name-based UUID, version 3). Only
    /// built-in tables have such ids, and they are never dropped.
    pub fn is_named(&self) -> bool {
        self.0.get_version_num() == 3
    }
}
uuid_id!(
    /// One version of one table's schema.
    SchemaVersion
);
uuid_id!(
    /// A node, as long as its data directory exists.
    HostId
);

/// A run of a member of a cluster, from its start to its end. Recorded in the metadata and in the
/// data directory, so that a start on an older copy of the directory is noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct NodeRun {
    /// The number; each run has a higher one than the runs before it. The first recorded one is 1.
    pub number: u64,
    /// Distinguishes runs of two copies of one directory, which may have the same number.
    pub id: Uuid,
}

uuid_id!(
    /// The id of a node's counter shards. A node takes a new id when it may have lost updates under
    /// the previous id.
    CounterId
);
uuid_id!(
    /// A paged query: the same on all of its pages.
    QueryId
);

/// A static or regular column of a table. An id is never used again within its table, not even when
/// a dropped column is added again. So cells in memtables and logs keep their meaning over every
/// schema change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub struct ColumnId(pub u16);
