//! Large-data guardrails: limits on the sizes of cells, rows and collections in writes.
//!
//! They apply to tables with `large_data_guardrails_enabled = true`. The coordinator checks the
//! data of one statement before it sends the data to replicas. Replicas check partitions, rows and
//! collections that have grown over earlier writes (`replica::large_data`). The warning thresholds
//! are the settings `compaction_large_*`, which also apply to sstables.

use crate::error::Error;
use crate::guardrails::{Guardrail, Violations};
use model::mutation::Mutation;
use model::row::{Row, State};
use model::{ColumnId, TableSchema};
use replica::LargeKinds;

pub use replica::large_data::{OPTION, Thresholds, is_guarded as is_checked};

/// The thresholds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LargeDataLimits {
    /// Bytes of a cell's value.
    pub cell: Thresholds,
    /// Bytes of a row.
    pub row: Thresholds,
    /// Elements of a collection.
    pub collection: Thresholds,
    /// `large_data_cql_warnings`: whether clients get warnings. Otherwise violations are only
    /// logged.
    pub warns_clients: bool,
}

impl Default for LargeDataLimits {
    /// ScyllaDB's defaults.
    fn default() -> Self {
        LargeDataLimits {
            cell: Thresholds { warned: 1 << 20, refused: 2 << 20 },
            row: Thresholds { warned: 10 << 20, refused: 20 << 20 },
            collection: Thresholds { warned: 10_000, refused: 20_000 },
            warns_clients: true,
        }
    }
}

/// A size, and the column that has it.
type Measured = (u64, Option<ColumnId>);

/// The largest cell, rows and collection of a mutation.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Largest {
    cell: Measured,
    row: u64,
    static_row: u64,
    collection: Measured,
}

impl Largest {
    fn of(mutation: &Mutation) -> Largest {
        let mut largest = Largest::default();
        let parts = mutation.parts();
        if let Some(row) = &parts.static_row {
            largest.static_row = row.len() as u64;
            largest.add(row);
        }
        parts.rows.for_each(|(_, row)| {
            largest.row = largest.row.max(row.len() as u64);
            largest.add(&row);
        });
        largest
    }

    fn add(&mut self, row: &Row) {
        let mut collection: Measured = (0, None);
        for cell in row.cells().filter(|cell| matches!(cell.state, State::Live | State::Expiring { .. })) {
            if cell.path.is_none() {
                self.cell = self.cell.max((cell.value.len() as u64, Some(cell.column)));
                continue;
            }
            // The cells of a collection are adjacent.
            let before = if collection.1 == Some(cell.column) { collection.0 } else { 0 };
            collection = (before + 1, Some(cell.column));
            self.collection = self.collection.max(collection);
        }
    }
}

impl LargeDataLimits {
    /// Refuses a mutation that exceeds a fail threshold. Otherwise returns which warning thresholds
    /// it exceeds.
    pub fn check(
        &self,
        schema: &TableSchema,
        mutation: &Mutation,
        violations: &Violations,
    ) -> Result<LargeKinds, Error> {
        let largest = Largest::of(mutation);
        let column = |id: Option<ColumnId>| {
            let name = id.and_then(|id| schema.column(id)).map_or("", |column| column.name.as_str());
            format!("column={name}")
        };
        let partition = || {
            let key = mutation.decorated_key();
            format!("partition_key={}", replica::large_data::key_texts(schema, &key.key).join(":"))
        };
        let cell = (LargeKinds::CELL, Guardrail::LargeCellWarned, Guardrail::LargeCell);
        let row = (LargeKinds::ROW, Guardrail::LargeRowWarned, Guardrail::LargeRow);
        let collection = (LargeKinds::COLLECTION, Guardrail::LargeCollectionWarned, Guardrail::LargeCollection);
        let checks = [
            (cell, self.cell.check(schema, "cell value size", largest.cell.0, || column(largest.cell.1))),
            (row, self.row.check(schema, "static row size", largest.static_row, partition)),
            (row, self.row.check(schema, "row size", largest.row, partition)),
            (
                collection,
                self.collection
                    .check(schema, "collection element count", largest.collection.0, || column(largest.collection.1)),
            ),
        ];
        let mut kinds = LargeKinds::default();
        for ((kind, warned, refused), result) in checks {
            match result {
                Err(why) => {
                    violations.add(refused);
                    return Err(Error::invalid(why));
                }
                Ok(true) => {
                    violations.add(warned);
                    kinds = kinds.with(kind);
                }
                Ok(false) => {}
            }
        }
        Ok(kinds)
    }

    /// The warning for a client whose write exceeds these warning thresholds, on this node or on
    /// replicas.
    pub fn warning(&self, kinds: LargeKinds) -> Option<String> {
        kinds.warning().filter(|_| self.warns_clients)
    }
}
