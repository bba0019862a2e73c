//! The bind variables of a statement: their numbers, names and types.
//!
//! Each `?` is its own variable. By default, named markers with the same name are one variable, as
//! in ScyllaDB. If `cql_duplicate_bind_variable_names_refer_to_same_variable` is false, each marker
//! is its own variable, as in Cassandra. The type of a variable follows from its use.

use crate::api::ColumnSpec;
use crate::dialect::Dialect;
use crate::error::Error;
use crate::pace::PlanPace;
use crate::syntax::{MAX_MARKERS, Marker, Name};
use cluster::Metadata;
use model::{CqlType, TableSchema};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::rc::Rc;

/// Collects the variables while a statement is planned.
pub struct Variables<'a> {
    /// The metadata in which types are resolved.
    pub metadata: &'a Metadata,
    /// The keyspace of the current table.
    pub keyspace: Rc<str>,
    /// The current table.
    pub table: Rc<str>,
    /// The types of the current table's partition key, which `token` takes.
    pub key_types: Vec<CqlType>,
    /// The dialect of the statement.
    pub dialect: Dialect,
    /// How planning shares its shard.
    pub pace: &'a PlanPace<'a>,
    names: &'a [Option<Name>],
    variable_of: Vec<u16>,
    specs: Vec<Option<ColumnSpec>>,
    /// The bytes of the results of constant function calls so far.
    folded: usize,
}

impl<'a> Variables<'a> {
    /// Starts with the markers of a parsed statement. An error if there are too many variables for
    /// their numbers.
    pub fn new(
        metadata: &'a Metadata,
        names: &'a [Option<Name>],
        dialect: Dialect,
        pace: &'a PlanPace<'a>,
    ) -> Result<Self, Error> {
        let (variable_of, count) = numbered(names, dialect.names_are_one).ok_or_else(too_many)?;
        let empty: Rc<str> = Rc::from("");
        Ok(Variables {
            metadata,
            keyspace: empty.clone(),
            table: empty,
            key_types: Vec::new(),
            dialect,
            pace,
            names,
            variable_of,
            specs: (0..count).map(|_| None).collect(),
            folded: 0,
        })
    }

    /// Sets the current table for the terms that follow.
    pub fn of_table(&mut self, schema: &TableSchema) {
        if *self.keyspace != *schema.keyspace || *self.table != *schema.name {
            self.keyspace = schema.keyspace.as_str().into();
            self.table = schema.name.as_str().into();
            self.key_types = schema.partition_key.iter().map(|column| column.ty.clone()).collect();
        }
    }

    /// The variable of a marker that is used for a value of this name and type.
    pub fn bind(&mut self, marker: Marker, name: &str, ty: &CqlType) -> Result<u16, Error> {
        let number = self.variable_of[marker.0];
        let marker_name = self.names[marker.0].as_ref();
        match &self.specs[number as usize] {
            Some(spec) if !same_values(&spec.ty, ty) => {
                Err(Error::invalid(format!("variable :{} has type {} which doesn't match {}", spec.name, spec.ty, ty)))
            }
            Some(_) => Ok(number),
            None => {
                let name = marker_name.map_or_else(|| name.to_string(), |name| name.to_string());
                let (keyspace, table) = (self.keyspace.clone(), self.table.clone());
                self.specs[number as usize] = Some(ColumnSpec { keyspace, table, name, ty: ty.clone() });
                Ok(number)
            }
        }
    }

    /// Counts the result of constant function calls. An error if all of them take too much memory.
    pub fn folded(&mut self, bytes: usize) -> Result<(), Error> {
        self.folded += bytes;
        super::check_bytes(self.folded)
    }

    /// The variables with several markers, and how many markers each has.
    pub fn repeated(&self) -> Box<[(u16, u32)]> {
        if self.variable_of.len() == self.specs.len() {
            return Box::default();
        }
        let mut markers = vec![0; self.specs.len()];
        self.variable_of.iter().for_each(|number| markers[*number as usize] += 1);
        let numbered = markers.into_iter().enumerate();
        numbered.filter(|(_, markers)| *markers > 1).map(|(number, markers)| (number as u16, markers)).collect()
    }

    /// The number of variables.
    pub fn count(&self) -> usize {
        self.specs.len()
    }

    /// The variables with their types.
    pub fn finish(self) -> Result<Box<[ColumnSpec]>, Error> {
        let untyped = || Error::invalid("Cannot tell the type of a bind marker");
        self.specs.into_iter().map(|spec| spec.ok_or_else(untyped)).collect()
    }
}

/// Markers up to this many are compared with each other; of more, a map is made.
const FEW_MARKERS: usize = 16;

/// The error for more variables than a request can bind. The parser refuses such statements first.
#[cold]
fn too_many() -> Error {
    Error::invalid(format!("A statement cannot have more than {MAX_MARKERS} bind variables"))
}

/// The number of each marker's variable, and how many there are. `None` if there are more than
/// numbers.
fn numbered<N: Ord>(names: &[Option<N>], names_are_one: bool) -> Option<(Vec<u16>, u16)> {
    let mut variable_of: Vec<u16> = Vec::with_capacity(names.len());
    // Ordered: clients choose the names, and could choose them so that hashes are the same.
    let mut first: BTreeMap<&N, u16> = BTreeMap::new();
    let mut count: u16 = 0;
    for (i, name) in names.iter().enumerate() {
        let before = match name.as_ref().filter(|_| names_are_one) {
            None => None,
            Some(name) if names.len() > FEW_MARKERS => match first.entry(name) {
                Entry::Occupied(entry) => Some(*entry.get()),
                Entry::Vacant(entry) => {
                    entry.insert(count);
                    None
                }
            },
            Some(name) => names[..i].iter().position(|other| other.as_ref() == Some(name)).map(|at| variable_of[at]),
        };
        variable_of.push(before.unwrap_or(count));
        count = count.checked_add(u16::from(before.is_none()))?;
    }
    Some((variable_of, count))
}

/// Whether values of both types have the same bytes and meaning. Freezing makes no difference.
fn same_values(a: &CqlType, b: &CqlType) -> bool {
    a == b || a.freeze() == b.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_support::Counted;

    #[test]
    fn markers_of_one_name_are_one_variable() {
        for padding in [0, FEW_MARKERS] {
            let mut names: Vec<Option<Counted>> = [1, 2, 1].map(|n| Some(Counted(n))).into();
            names.insert(1, None);
            names.extend((0..padding).map(|n| Some(Counted(100 + n))));
            let (numbers, count) = numbered(&names, true).expect("there are few");
            assert_eq!((&numbers[..4], usize::from(count)), (&[0, 1, 2, 0][..], 3 + padding));
            let (numbers, count) = numbered(&names, false).expect("there are few");
            assert_eq!((&numbers[..4], usize::from(count)), (&[0, 1, 2, 3][..], 4 + padding));
        }
    }

    #[test]
    fn many_named_markers_are_not_compared_with_each_other() {
        const MARKERS: usize = u16::MAX as usize;
        let names: Vec<Option<Counted>> = (0..MARKERS).map(|n| Some(Counted(n % 60_000))).collect();
        Counted::take_comparisons();
        let (numbers, count) = numbered(&names, true).expect("they have numbers");
        assert_eq!((usize::from(count), numbers[60_000]), (60_000, 0));
        let comparisons = Counted::take_comparisons();
        assert!(comparisons < 100 * MARKERS, "{comparisons} comparisons");
    }

    #[test]
    fn variables_are_not_more_than_numbers() {
        const MOST: usize = MAX_MARKERS;
        let count = |names: &[Option<Counted>]| numbered(names, true).map(|(_, count)| usize::from(count));
        let mut names: Vec<Option<Counted>> = (0..MOST).map(|_| None).collect();
        assert_eq!(count(&names), Some(MOST));
        names.push(None);
        assert_eq!(count(&names), None);
        names.pop();
        names.pop();
        names.extend([1, 1, 1].map(|n| Some(Counted(n))));
        assert_eq!(count(&names), Some(MOST), "markers of one name are one variable");
        assert_eq!(numbered(&names, false), None);
    }
}
