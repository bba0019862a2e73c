//! Builds the definition of a table from CREATE TABLE: columns, keys, order and options. Pure.
//!
//! Static and regular columns share one space of column ids: first single-cell columns by name,
//! then multi-cell columns by name.

use super::options::{self, Purpose};
use super::{names, types, written_keyspace};
use crate::error::Error;
use crate::syntax::ast::{CreateTable, Name, PrimaryKey};
use cluster::Metadata;
use cluster::metadata::{ColumnDefinition, TableDefinition};
use model::CqlType;
use model::id::{ColumnId, SchemaVersion, TableId};
use model::schema::ColumnKind;
use std::collections::{BTreeMap, BTreeSet};

/// The most columns of a table.
const MAX_COLUMNS: usize = 32_767;

/// The identifiers of a new table.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Its id, unless the statement sets one.
    pub table: TableId,
    /// Its first schema version.
    pub version: SchemaVersion,
}

/// The definition of the table, and warnings. The keyspace must exist only if its types are used.
pub fn definition(
    metadata: &Metadata,
    statement: &CreateTable,
    identity: Identity,
) -> Result<(TableDefinition, Vec<String>), Error> {
    let keyspace = written_keyspace(&statement.name);
    let name = statement.name.name.as_str();
    names::check_table_name(name)?;
    check_duplicates(statement)?;
    let options = options::apply(None, &statement.options, Purpose::Create)?;
    options::check_features(metadata, &options.options)?;
    let columns = resolve_columns(metadata, keyspace, statement)?;
    let key = primary_key(statement)?;
    if statement.compact_storage {
        return Err(Error::invalid("COMPACT STORAGE is deprecated and not supported: create the table without it"));
    }
    let keys = check_key(key, &columns)?;
    check_statics(statement, key)?;
    check_counters(&keys, &columns, options.options.default_time_to_live)?;
    let descending = clustering_order(statement, key)?;

    let mut out = Vec::with_capacity(columns.len());
    for name in &key.partition {
        out.push(column(ColumnId(0), name, ColumnKind::PartitionKey, &columns[name].ty, false));
    }
    for (name, descending) in key.clustering.iter().zip(descending) {
        out.push(column(ColumnId(0), name, ColumnKind::Clustering, &columns[name].ty, descending));
    }
    let mut others: Vec<(&Name, &Written)> = columns.iter().filter(|(name, _)| !keys.contains(name)).collect();
    others.sort_by_key(|(name, column)| (column.ty.is_multi_cell(), *name));
    for (id, (name, written)) in others.into_iter().enumerate() {
        let kind = if written.is_static { ColumnKind::Static } else { ColumnKind::Regular };
        out.push(column(ColumnId(id as u16), name, kind, &written.ty, false));
    }
    let definition = TableDefinition {
        id: options.id.map_or(identity.table, TableId),
        version: identity.version,
        keyspace: keyspace.to_owned(),
        name: name.to_owned(),
        columns: out,
        dropped: Vec::new(),
        options: options.options,
    };
    Ok((definition, options.warnings))
}

/// A column with its type resolved.
struct Written {
    ty: CqlType,
    is_static: bool,
}

fn column(id: ColumnId, name: &Name, kind: ColumnKind, ty: &CqlType, descending: bool) -> ColumnDefinition {
    ColumnDefinition { id, name: name.as_str().to_owned(), kind, ty: ty.to_string(), descending }
}

fn check_duplicates(statement: &CreateTable) -> Result<(), Error> {
    if statement.columns.len() > MAX_COLUMNS {
        return Err(Error::invalid(format!("A table cannot have more than {MAX_COLUMNS} columns")));
    }
    let mut seen = BTreeSet::default();
    match statement.columns.iter().find(|column| !seen.insert(&column.name)) {
        Some(twice) => Err(Error::invalid(format!("Multiple definition of identifier {}", twice.name))),
        None => Ok(()),
    }
}

fn resolve_columns(
    metadata: &Metadata,
    keyspace: &str,
    statement: &CreateTable,
) -> Result<BTreeMap<Name, Written>, Error> {
    let mut columns = BTreeMap::new();
    for written in &statement.columns {
        names::check_column_name(written.name.as_str())?;
        if written.is_ttl {
            return Err(Error::not_supported("a TTL column"));
        }
        let ty = types::resolve(metadata, keyspace, &written.type_name)?;
        columns.insert(written.name.clone(), Written { ty, is_static: written.is_static });
    }
    Ok(columns)
}

fn primary_key(statement: &CreateTable) -> Result<&PrimaryKey, Error> {
    match statement.primary_keys.as_slice() {
        [] => Err(Error::invalid("No PRIMARY KEY specified (exactly one required)")),
        [key] => Ok(key),
        _ => Err(Error::invalid("Multiple PRIMARY KEYs specified (exactly one required)")),
    }
}

/// The names of the key columns, once they are found to be valid.
fn check_key<'a>(key: &'a PrimaryKey, columns: &BTreeMap<Name, Written>) -> Result<BTreeSet<&'a Name>, Error> {
    let mut names = BTreeSet::default();
    for name in key.partition.iter().chain(&key.clustering) {
        let column = columns.get(name).filter(|_| names.insert(name));
        let column =
            column.ok_or_else(|| Error::invalid(format!("Unknown definition {name} referenced in PRIMARY KEY")))?;
        check_key_type(name, &column.ty)?;
        if column.is_static {
            return Err(Error::invalid(format!("Static column {name} cannot be part of the PRIMARY KEY")));
        }
    }
    Ok(names)
}

fn check_key_type(name: &Name, ty: &CqlType) -> Result<(), Error> {
    if ty.is_multi_cell() {
        let what = if ty.is_collection() { "collection" } else { "user-defined" };
        return Err(Error::invalid(format!("Invalid non-frozen {what} type for PRIMARY KEY component {name}")));
    }
    if ty.contains_counter() {
        return Err(Error::invalid(format!("counter type is not supported for PRIMARY KEY part {name}")));
    }
    if ty.contains_duration() {
        return Err(Error::invalid(format!("duration type is not supported for PRIMARY KEY part {name}")));
    }
    Ok(())
}

/// The error for static columns without clustering columns.
pub(super) const STATIC_WITHOUT_CLUSTERING: &str =
    "Static columns are only useful (and thus allowed) if the table has at least one clustering column";

fn check_statics(statement: &CreateTable, key: &PrimaryKey) -> Result<(), Error> {
    if key.clustering.is_empty() && statement.columns.iter().any(|column| column.is_static) {
        return Err(Error::invalid(STATIC_WITHOUT_CLUSTERING));
    }
    Ok(())
}

fn check_counters(keys: &BTreeSet<&Name>, columns: &BTreeMap<Name, Written>, default_ttl: i32) -> Result<(), Error> {
    let others = || columns.iter().filter(|(name, _)| !keys.contains(name));
    if !others().any(|(_, column)| column.ty.is_counter()) {
        return Ok(());
    }
    if default_ttl > 0 {
        return Err(Error::invalid("Cannot set default_time_to_live on a table with counters"));
    }
    match others().find(|(_, column)| !column.ty.is_counter()) {
        Some((name, _)) => {
            Err(Error::Configuration(format!("Cannot add a non counter column ({name}) in a counter column family")))
        }
        None => Ok(()),
    }
}

/// Whether each clustering column is descending. The directive lists the first clustering columns
/// in their order. The others ascend.
fn clustering_order(statement: &CreateTable, key: &PrimaryKey) -> Result<Vec<bool>, Error> {
    let written = &statement.clustering_order;
    if written.len() > key.clustering.len() {
        return Err(Error::invalid("Only clustering key columns can be defined in CLUSTERING ORDER directive"));
    }
    let mut descending = vec![false; key.clustering.len()];
    for (at, (name, is_descending)) in written.iter().enumerate() {
        let expected = &key.clustering[at];
        if name != expected {
            return Err(Error::invalid(match written.iter().any(|(ordered, _)| ordered == expected) {
                true => format!(
                    "The order of columns in the CLUSTERING ORDER directive must be the one of the clustering key \
                     ({expected} must appear before {name})"
                ),
                false => format!("Missing CLUSTERING ORDER for column {expected}"),
            }));
        }
        descending[at] = *is_descending;
    }
    Ok(descending)
}
