//! The oracle of the schema: which tables may exist after the answers that clients got. Each name
//! is used at most once. Pure.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Table {
    /// It is being created or dropped, or such a statement failed.
    Maybe,
    There,
    Gone,
}

/// The oracle of tables that clients create and drop.
#[derive(Debug, Default)]
pub struct SchemaOracle {
    tables: BTreeMap<String, Table>,
    /// Acknowledged changes.
    pub made: u64,
}

impl SchemaOracle {
    /// A statement creates a table with a new name. Returns the name.
    pub fn begin_create(&mut self) -> String {
        let name = format!("u{}", self.tables.len());
        self.tables.insert(name.clone(), Table::Maybe);
        name
    }

    /// The table was created.
    pub fn created(&mut self, name: &str) {
        self.set(name, Table::There);
        self.made += 1;
    }

    /// A statement drops one of the existing tables. Returns its name.
    pub fn begin_drop(&mut self) -> Option<String> {
        let there = self.tables.iter().find(|(_, table)| **table == Table::There)?.0.clone();
        self.set(&there, Table::Maybe);
        Some(there)
    }

    /// The table was dropped.
    pub fn dropped(&mut self, name: &str) {
        self.set(name, Table::Gone);
        self.made += 1;
    }

    fn set(&mut self, name: &str, table: Table) {
        self.tables.insert(name.to_owned(), table);
    }

    /// Whether a table exists and is not being dropped.
    pub fn is_there(&self, name: &str) -> bool {
        self.tables.get(name) == Some(&Table::There)
    }

    /// How many tables exist or may exist.
    pub fn count(&self) -> usize {
        self.tables.values().filter(|table| **table != Table::Gone).count()
    }

    /// Checks the tables that a node has.
    pub fn check(&self, found: &BTreeSet<String>) -> Result<(), String> {
        for (name, table) in &self.tables {
            match table {
                Table::There if !found.contains(name) => {
                    return Err(format!("acked_writes_survive is broken: table {name} was made, and is not there"));
                }
                Table::Gone if found.contains(name) => {
                    return Err(format!("no_resurrection is broken: table {name} was dropped, and is there"));
                }
                _ => {}
            }
        }
        match found.iter().find(|name| !self.tables.contains_key(*name)) {
            Some(name) => Err(format!("table {name} was never created")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn created_tables_must_exist_and_dropped_ones_must_not() {
        let mut oracle = SchemaOracle::default();
        let (made, maybe, gone) = (oracle.begin_create(), oracle.begin_create(), oracle.begin_create());
        oracle.created(&gone);
        assert_eq!(oracle.begin_drop(), Some(gone.clone()));
        oracle.dropped(&gone);
        oracle.created(&made);
        let found = |names: &[&String]| names.iter().map(|name| (*name).clone()).collect::<BTreeSet<_>>();
        assert_eq!(oracle.check(&found(&[&made])), Ok(()));
        assert_eq!(oracle.check(&found(&[&made, &maybe])), Ok(()));
        assert!(oracle.check(&found(&[&maybe])).is_err() && oracle.check(&found(&[&made, &gone])).is_err());
        assert!(oracle.check(&found(&[&made, &"u9".to_owned()])).is_err());
        assert_eq!(oracle.count(), 2);
    }
}
