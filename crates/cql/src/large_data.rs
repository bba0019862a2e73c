//! Large-data guardrails: writes of cells, rows and collections that are larger than the operator wants.
//!
//! They apply to tables with `large_data_guardrails_enabled = true`. The coordinator looks at what one statement writes,
//! before it sends it to replicas. What grew over earlier writes is listed in `system.large_partitions`,
//! `large_rows` and `large_cells`.
//! The warning thresholds are those of `compaction_large_*`, by which sstables are checked too.

use crate::error::Error;
use crate::guardrails::{Guardrail, Violations};
use model::TableSchema;
use model::mutation::Mutation;
use model::row::{Row, State};

/// The table option that switches the guardrails on.
pub const OPTION: &str = "large_data_guardrails_enabled";

/// Whether the writes of a table are checked.
pub fn is_checked(schema: &TableSchema) -> bool {
    schema.options.others.get(OPTION).is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// From where on something is warned of and refused; 0: never.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// More brings a warning.
    pub warned: u64,
    /// More is refused.
    pub refused: u64,
}

/// The thresholds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LargeDataLimits {
    /// Bytes of the value of a cell.
    pub cell: Limits,
    /// Bytes of a row.
    pub row: Limits,
    /// Elements of a collection.
    pub collection: Limits,
    /// `large_data_cql_warnings`: whether clients are warned; otherwise only the log has it.
    pub warns_clients: bool,
}

impl Default for LargeDataLimits {
    /// ScyllaDB's.
    fn default() -> Self {
        LargeDataLimits {
            cell: Limits { warned: 1 << 20, refused: 2 << 20 },
            row: Limits { warned: 10 << 20, refused: 20 << 20 },
            collection: Limits { warned: 10_000, refused: 20_000 },
            warns_clients: true,
        }
    }
}

/// The largest things of a mutation.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Largest {
    cell: u64,
    row: u64,
    collection: u64,
}

impl Largest {
    fn of(mutation: &Mutation) -> Largest {
        let mut largest = Largest::default();
        let parts = mutation.parts();
        parts.static_row.iter().for_each(|row| largest.add(row));
        parts.rows.for_each(|(_, row)| largest.add(&row));
        largest
    }

    fn add(&mut self, row: &Row) {
        self.row = self.row.max(row.len() as u64);
        let mut collection = None;
        let mut elements = 0;
        for cell in row.cells().filter(|cell| matches!(cell.state, State::Live | State::Expiring { .. })) {
            self.cell = self.cell.max(cell.value.len() as u64);
            if cell.path.is_none() {
                continue;
            }
            if collection != Some(cell.column) {
                (collection, elements) = (Some(cell.column), 0);
            }
            elements += 1;
            self.collection = self.collection.max(elements);
        }
    }
}

impl LargeDataLimits {
    /// Refuses a mutation of something too large; otherwise a warning for the client, if something is large.
    pub fn check(
        &self,
        schema: &TableSchema,
        mutation: &Mutation,
        violations: &Violations,
    ) -> Result<Option<String>, Error> {
        let largest = Largest::of(mutation);
        let found = [
            ("cell", "bytes", largest.cell, self.cell, Guardrail::LargeCellWarned, Guardrail::LargeCell),
            ("row", "bytes", largest.row, self.row, Guardrail::LargeRowWarned, Guardrail::LargeRow),
            (
                "collection",
                "elements",
                largest.collection,
                self.collection,
                Guardrail::LargeCollectionWarned,
                Guardrail::LargeCollection,
            ),
        ];
        let exceeds = |size: u64, limit: u64| limit > 0 && size > limit;
        for (what, unit, size, limits, _, refused) in found {
            if exceeds(size, limits.refused) {
                violations.add(refused);
                return Err(Error::invalid(format!(
                    "Large data guardrail: Hard limit violation for {what} of table {}.{}: {size} {unit}, and the limit is {}",
                    schema.keyspace, schema.name, limits.refused
                )));
            }
        }
        let mut large = Vec::new();
        for (what, unit, size, limits, warned, _) in found {
            if exceeds(size, limits.warned) {
                violations.add(warned);
                tracing::warn!(
                    target: "large_data",
                    keyspace = schema.keyspace,
                    table = schema.name,
                    kind = what,
                    size,
                    unit,
                    limit = limits.warned,
                    "a write exceeds the soft limit of the large data guardrails"
                );
                large.push(what);
            }
        }
        let warns = self.warns_clients && !large.is_empty();
        Ok(warns.then(|| format!("Large data guardrail: Soft limit violation for {}", large.join(", "))))
    }
}
