//! How large the schema may become. Every shard of every node holds it. The metadata log, its
//! snapshots, DESCRIBE and the system tables hold copies.
//!
//! Only the node that makes a change checks these limits. A committed change is applied whatever
//! its size.

use super::definition::{Op, TableDefinition};
use super::state::{Keyspace, Metadata};
use model::options::OptionMap;
use model::types::UserType;
use model::types::limits::Extent;
use thiserror::Error;

/// The most bytes that the definition of one keyspace, table or user type may take.
pub const MAX_DEFINITION_BYTES: usize = 4 << 20;

/// The bytes of a keyspace, a table or a type, without its texts.
const DEFINITION: usize = 512;
/// The bytes of a column, a field or a part of a type, without its texts.
const PART: usize = 32;

/// The schema, or a definition in it, would become too large.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum TooLarge {
    /// A keyspace, table or type.
    #[error(
        "The definition of {name} would take {bytes} bytes; the maximum for a keyspace, table or type is \
         {MAX_DEFINITION_BYTES} bytes"
    )]
    Definition {
        /// Its name.
        name: String,
        /// Its size.
        bytes: usize,
    },
    /// All together.
    #[error(
        "The schema would take {bytes} bytes; the maximum is {most} bytes (schema_size_fail_threshold_in_mb). Drop \
         tables, shorten comments, or raise the setting"
    )]
    Schema {
        /// Its size.
        bytes: usize,
        /// How large it may be.
        most: usize,
    },
}

impl Metadata {
    /// How many bytes the definitions of all keyspaces, tables and types take, about.
    pub fn schema_bytes(&self) -> usize {
        let retired = self.retired_names().map(|(keyspace, table)| PART + keyspace.len() + table.len());
        self.keyspaces.values().map(|keyspace| of_keyspace(keyspace)).sum::<usize>() + retired.sum::<usize>()
    }

    /// Refuses a change that makes the schema larger than `most` bytes, or a definition larger than
    /// [`MAX_DEFINITION_BYTES`]. A change that makes the schema smaller is never refused.
    pub fn check_size(&self, ops: &[Op], most: usize) -> Result<(), TooLarge> {
        // A change that does not fit the metadata is reported when it is applied.
        let Ok(ahead) = self.with(ops) else { return Ok(()) };
        let (before, after) = (self.schema_bytes(), ahead.schema_bytes());
        if after <= before {
            return Ok(());
        }
        for op in ops {
            let put = match op {
                Op::PutTable(table) => Some((&table.name, of_table(table))),
                Op::PutKeyspace(keyspace) => {
                    Some((&keyspace.name, of_map(&keyspace.replication) + of_map(&keyspace.tablets)))
                }
                Op::PutType(put) => {
                    let made = ahead.keyspace(&put.keyspace).and_then(|keyspace| keyspace.types.get(&put.name));
                    made.map(|user_type| (&put.name, of_type(user_type)))
                }
                _ => None,
            };
            if let Some((name, bytes)) = put.filter(|(_, bytes)| *bytes > MAX_DEFINITION_BYTES) {
                return Err(TooLarge::Definition { name: name.clone(), bytes });
            }
        }
        match after > most {
            true => Err(TooLarge::Schema { bytes: after, most }),
            false => Ok(()),
        }
    }
}

fn of_keyspace(keyspace: &Keyspace) -> usize {
    let definition = &keyspace.definition;
    let own = DEFINITION + definition.name.len() + of_map(&definition.replication) + of_map(&definition.tablets);
    let tables: usize = keyspace.tables.values().map(|table| of_table(&table.definition)).sum();
    own + tables + keyspace.types.values().map(|user_type| of_type(user_type)).sum::<usize>()
}

fn of_table(table: &TableDefinition) -> usize {
    let columns: usize = table.columns.iter().map(|column| PART + column.name.len() + column.ty.len()).sum();
    let dropped: usize = table.dropped.iter().map(|column| PART + column.name.len() + column.ty.len()).sum();
    let options = &table.options;
    let maps = [
        &options.caching,
        &options.compaction,
        &options.compression,
        &options.tombstone_gc,
        &options.per_partition_rate_limit,
        &options.cdc,
        &options.tablets,
        &options.others,
    ];
    let options = options.comment.len() + options.speculative_retry.len() + maps.into_iter().map(of_map).sum::<usize>();
    DEFINITION + table.keyspace.len() + table.name.len() + columns + dropped + options
}

fn of_type(user_type: &UserType) -> usize {
    let fields = user_type.fields.iter().map(|(name, ty)| name.len() + PART * Extent::of(ty).nodes);
    DEFINITION + user_type.keyspace.len() + user_type.name.len() + fields.sum::<usize>()
}

fn of_map(map: &OptionMap) -> usize {
    map.iter().map(|(name, value)| PART + name.len() + value.len()).sum()
}
