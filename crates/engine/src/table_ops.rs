//! Operations on entire tables and tablets of a shard.
//!
//! - `add`: adds a table and opens its sstables; `reshard` splits sstables that span tablets
//!   before.
//! - `tablet_lifecycle`: adds and removes tablets.
//! - `hand_over`: a tablet moves to another shard of this node.
//! - `truncate`, `epoch`: TRUNCATE on one shard, and its order in a cluster.
//! - `drop`: DROP TABLE.
//! - `logged_rows`: rows that are only in old logs, for the snapshots of TRUNCATE and DROP.
//! - `snapshot`: hard links to the sstables of a table.
//! - `upload`: loads sstables from the `upload` directory of a table.
//! - `tablet_counter_ids`: the ids under which counters of moved tablets are counted.
//! - `directory`: makes the directory of a table and removes files from it.
//!
//! All are methods of [`crate::Engine`].

mod add;
mod directory;
mod drop;
mod epoch;
mod hand_over;
mod logged_rows;
mod reshard;
mod snapshot;
mod tablet_counter_ids;
mod tablet_lifecycle;
mod truncate;
mod upload;

pub use upload::{LoadedPiece, Uploaded};
pub(crate) use upload::{fits, remove_pieces};
