//! Which tables there are, as clients that make and drop them were told. Pure. Each name is made at most once.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Table {
    /// It is being made or dropped, or that failed.
    Maybe,
    There,
    Gone,
}

/// The book of tables that come and go.
#[derive(Debug, Default)]
pub struct SchemaBook {
    tables: BTreeMap<String, Table>,
    /// Changes acknowledged.
    pub made: u64,
}

impl SchemaBook {
    /// A table with a new name is being made.
    pub fn begin_create(&mut self) -> String {
        let name = format!("u{}", self.tables.len());
        self.tables.insert(name.clone(), Table::Maybe);
        name
    }

    /// It was made.
    pub fn created(&mut self, name: &str) {
        self.set(name, Table::There);
        self.made += 1;
    }

    /// Any table that is there, being dropped from now on.
    pub fn begin_drop(&mut self) -> Option<String> {
        let there = self.tables.iter().find(|(_, table)| **table == Table::There)?.0.clone();
        self.set(&there, Table::Maybe);
        Some(there)
    }

    /// It was dropped.
    pub fn dropped(&mut self, name: &str) {
        self.set(name, Table::Gone);
        self.made += 1;
    }

    fn set(&mut self, name: &str, table: Table) {
        self.tables.insert(name.to_owned(), table);
    }

    /// Whether a table is there, and nobody drops it.
    pub fn is_there(&self, name: &str) -> bool {
        self.tables.get(name) == Some(&Table::There)
    }

    /// How many there are, or may be.
    pub fn count(&self) -> usize {
        self.tables.values().filter(|table| **table != Table::Gone).count()
    }

    /// Whether these can be the tables that there are.
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
            Some(name) => Err(format!("nobody has made table {name}")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_is_there_and_what_was_dropped_is_not() {
        let mut book = SchemaBook::default();
        let (made, maybe, gone) = (book.begin_create(), book.begin_create(), book.begin_create());
        book.created(&gone);
        assert_eq!(book.begin_drop(), Some(gone.clone()));
        book.dropped(&gone);
        book.created(&made);
        let found = |names: &[&String]| names.iter().map(|name| (*name).clone()).collect::<BTreeSet<_>>();
        assert_eq!(book.check(&found(&[&made])), Ok(()));
        assert_eq!(book.check(&found(&[&made, &maybe])), Ok(()));
        assert!(book.check(&found(&[&maybe])).is_err() && book.check(&found(&[&made, &gone])).is_err());
        assert!(book.check(&found(&[&made, &"u9".to_owned()])).is_err());
        assert_eq!(book.count(), 2);
    }
}
