//! Large-data guardrails on a replica: checks of writes to data that has become large over earlier
//! writes.
//!
//! They apply to tables with `large_data_guardrails_enabled = true`, and to writes with a context
//! that requires the check: writes of clients. Read repair, hints and streaming carry data that a
//! replica has accepted already, so they are not checked.
//!
//! A partition is known to be large once it is in one sstable. Rows and collections are also known
//! while they are in a memtable. So the limits are not exact.

use crate::error::ReplicaError;
use crate::replica::Replica;
use engine::{LargeView, clustering_key_texts};
use model::TableSchema;
use model::key::{Clustering, DecoratedKey};
use model::mutation::Mutation;
use model::row::Row;
use std::cell::Cell;

pub use engine::key_texts;

/// The table option that enables the guardrails.
pub const OPTION: &str = "large_data_guardrails_enabled";

/// Whether writes to a table are checked.
pub fn is_guarded(schema: &TableSchema) -> bool {
    schema.options.others.get(OPTION).is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// A soft and a hard limit. 0: no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thresholds {
    /// The soft limit: a larger size causes a warning.
    pub warned: u64,
    /// The hard limit: a larger size is refused.
    pub refused: u64,
}

/// The thresholds of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LargeDataThresholds {
    /// Bytes of a partition.
    pub partition: Thresholds,
    /// Rows of a partition.
    pub rows: Thresholds,
    /// Bytes of a row.
    pub row: Thresholds,
    /// Elements of a collection.
    pub collection: Thresholds,
}

impl Default for LargeDataThresholds {
    /// ScyllaDB's defaults.
    fn default() -> Self {
        LargeDataThresholds {
            partition: Thresholds { warned: 1000 << 20, refused: 2000 << 20 },
            rows: Thresholds { warned: 100_000, refused: 200_000 },
            row: Thresholds { warned: 10 << 20, refused: 20 << 20 },
            collection: Thresholds { warned: 10_000, refused: 20_000 },
        }
    }
}

/// The kinds of data whose soft limits a write exceeds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LargeKinds(u8);

impl LargeKinds {
    /// A partition, by its bytes or rows.
    pub const PARTITION: LargeKinds = LargeKinds(1);
    /// A row.
    pub const ROW: LargeKinds = LargeKinds(2);
    /// A cell.
    pub const CELL: LargeKinds = LargeKinds(4);
    /// A collection.
    pub const COLLECTION: LargeKinds = LargeKinds(8);

    const NAMES: [(LargeKinds, &str); 4] = [
        (LargeKinds::PARTITION, "partition"),
        (LargeKinds::ROW, "row"),
        (LargeKinds::CELL, "cell"),
        (LargeKinds::COLLECTION, "collection"),
    ];

    /// Whether no soft limit is exceeded.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The union of both.
    pub fn with(self, others: LargeKinds) -> LargeKinds {
        LargeKinds(self.0 | others.0)
    }

    /// Encodes the kinds for the wire form.
    pub(crate) fn bits(self) -> u8 {
        self.0
    }

    /// Decodes the kinds of the wire form, without unknown ones.
    pub(crate) fn from_bits(bits: u8) -> LargeKinds {
        LargeKinds(bits & 15)
    }

    /// The warning for the client, if a soft limit is exceeded.
    pub fn warning(self) -> Option<String> {
        let names: Vec<&str> =
            Self::NAMES.iter().filter(|(kind, _)| self.0 & kind.0 != 0).map(|(_, name)| *name).collect();
        (!names.is_empty()).then(|| format!("Large data guardrail: Soft limit violation for {}", names.join(", ")))
    }
}

/// The error text for data beyond its hard limit.
fn hard_limit(schema: &TableSchema, what: &str, size: u64, limit: u64, place: &str) -> String {
    let (keyspace, table) = (&schema.keyspace, &schema.name);
    format!(
        "Large data guardrail: {what} {size} exceeds hard limit {limit} (keyspace={keyspace}, table={table}, {place})"
    )
}

/// Logs data beyond its soft limit.
fn log_soft_limit(schema: &TableSchema, what: &str, size: u64, limit: u64, place: &str) {
    let (keyspace, table) = (&schema.keyspace, &schema.name);
    tracing::warn!(
        target: "large_data",
        "Large data guardrail: {what} {size} exceeds soft limit {limit} (keyspace={keyspace}, table={table}, {place})"
    );
}

impl Thresholds {
    /// The lower one of both limits. None: there is no limit.
    fn least(self) -> Option<u64> {
        [self.warned, self.refused].into_iter().filter(|limit| *limit > 0).min()
    }

    /// Whether a size exceeds the soft limit; an error if it exceeds the hard limit.
    pub fn check(
        self,
        schema: &TableSchema,
        what: &str,
        size: u64,
        place: impl FnOnce() -> String,
    ) -> Result<bool, String> {
        if self.refused > 0 && size > self.refused {
            return Err(hard_limit(schema, what, size, self.refused, &place()));
        }
        let is_warned = self.warned > 0 && size > self.warned;
        if is_warned {
            log_soft_limit(schema, what, size, self.warned, &place());
        }
        Ok(is_warned)
    }
}

impl Replica {
    /// Changes the thresholds for all writes from now on.
    pub fn set_large_data_thresholds(&self, thresholds: LargeDataThresholds) {
        self.large_data.set(thresholds);
    }

    /// Refuses a write to data beyond its hard limit, and records data beyond its soft limit in
    /// `found`.
    #[cold]
    pub(crate) fn check_large_data(
        &self,
        mutation: &Mutation,
        key: &DecoratedKey,
        found: &Cell<LargeKinds>,
    ) -> Result<(), ReplicaError> {
        let Some(schema) = self.engine.schema(mutation.table()).filter(|schema| is_guarded(schema)) else {
            return Ok(());
        };
        let Some(view) = self.engine.large_view(mutation.table(), key) else { return Ok(()) };
        let check = Check { thresholds: self.large_data.get(), view: &view, schema: &schema };
        let kinds = check.mutation(mutation, key).map_err(ReplicaError::Rejected)?;
        found.set(found.get().with(kinds));
        Ok(())
    }
}

struct Check<'a> {
    thresholds: LargeDataThresholds,
    view: &'a LargeView,
    schema: &'a TableSchema,
}

impl Check<'_> {
    fn mutation(&self, mutation: &Mutation, key: &DecoratedKey) -> Result<LargeKinds, String> {
        let mut kinds = LargeKinds::default();
        if let Some(partition) = self.view.partition() {
            let place = || format!("partition_key={}", key_texts(self.schema, &key.key).join(":"));
            let thresholds = &self.thresholds;
            let mut is_warned = thresholds.partition.check(self.schema, "partition size", partition.bytes, place)?;
            is_warned |= thresholds.rows.check(self.schema, "partition row count", partition.rows, place)?;
            if is_warned {
                kinds = LargeKinds::PARTITION;
            }
        }
        let parts = mutation.parts();
        if let Some(row) = &parts.static_row {
            kinds = kinds.with(self.row(None, row)?);
        }
        for (clustering, row) in parts.rows {
            kinds = kinds.with(self.row(Some(&clustering), &row)?);
        }
        Ok(kinds)
    }

    fn row(&self, clustering: Option<&Clustering>, row: &Row) -> Result<LargeKinds, String> {
        let mut kinds = LargeKinds::default();
        let clustering_key = || {
            let texts = clustering.map(|clustering| clustering_key_texts(self.schema, clustering).join(":"));
            format!("clustering_key={}", texts.unwrap_or_default())
        };
        if let Some(least) = self.thresholds.row.least() {
            let size = self.view.row(clustering, least);
            if self.thresholds.row.check(self.schema, "row size", size, clustering_key)? {
                kinds = LargeKinds::ROW;
            }
        }
        let Some(least) = self.thresholds.collection.least() else { return Ok(kinds) };
        let mut last = None;
        for cell in row.cells().filter(|cell| cell.path.is_some() || cell.as_complex_deletion().is_some()) {
            // The cells of a collection are adjacent.
            if last.replace(cell.column) == Some(cell.column) {
                continue;
            }
            let elements = self.view.collection(clustering, cell.column, least);
            let place = || {
                let name = self.schema.column(cell.column).map_or("", |column| column.name.as_str());
                format!("column={name}, {}", clustering_key())
            };
            if self.thresholds.collection.check(self.schema, "collection element count", elements, place)? {
                kinds = kinds.with(LargeKinds::COLLECTION);
            }
        }
        Ok(kinds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_name_all_kinds_in_order() {
        assert_eq!(LargeKinds::default().warning(), None);
        let all = [LargeKinds::CELL, LargeKinds::PARTITION, LargeKinds::COLLECTION, LargeKinds::ROW];
        let all = all.into_iter().fold(LargeKinds::default(), LargeKinds::with);
        let text = "Large data guardrail: Soft limit violation for partition, row, cell, collection";
        assert_eq!(all.warning().as_deref(), Some(text));
        assert_eq!(LargeKinds::from_bits(0xf0 | LargeKinds::ROW.bits()), LargeKinds::ROW);
    }
}
