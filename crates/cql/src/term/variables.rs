//! The bind variables of a statement: their numbers, names and types.
//!
//! Each `?` is its own variable. Named markers of the same name are one variable, as in ScyllaDB,
//! or each its own, as in Cassandra, by the operator's choice. The type of a variable follows from
//! its use.

use crate::api::ColumnSpec;
use crate::dialect::Dialect;
use crate::error::Error;
use crate::syntax::{Marker, Name};
use cluster::Metadata;
use model::{CqlType, TableSchema};
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
    names: &'a [Option<Name>],
    variable_of: Vec<u16>,
    specs: Vec<Option<ColumnSpec>>,
}

impl<'a> Variables<'a> {
    /// Starts with the markers of a parsed statement.
    pub fn new(metadata: &'a Metadata, names: &'a [Option<Name>], dialect: Dialect) -> Self {
        let mut variable_of = Vec::with_capacity(names.len());
        let mut count = 0;
        for (i, name) in names.iter().enumerate() {
            let shared = name.as_ref().filter(|_| dialect.names_are_one);
            let before = shared.and_then(|name| names[..i].iter().position(|other| other.as_ref() == Some(name)));
            match before {
                Some(before) => variable_of.push(variable_of[before]),
                None => {
                    variable_of.push(count);
                    count += 1;
                }
            }
        }
        let empty: Rc<str> = Rc::from("");
        Variables {
            metadata,
            keyspace: empty.clone(),
            table: empty,
            key_types: Vec::new(),
            dialect,
            names,
            variable_of,
            specs: (0..count).map(|_| None).collect(),
        }
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

/// Whether values of both types have the same bytes and meaning. Freezing makes no difference.
fn same_values(a: &CqlType, b: &CqlType) -> bool {
    a == b || a.freeze() == b.freeze()
}
