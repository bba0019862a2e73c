//! The rows of a virtual table: typed values by column name, serialized.

use crate::source::VirtualRow;
use bytes::Bytes;
use model::schema::{ColumnKind, TableSchema};
use model::types::Value;
use std::rc::Rc;

/// Collects rows. Values that do not fit the schema are a bug of the generator and panic.
pub struct Rows {
    schema: Rc<TableSchema>,
    rows: Vec<VirtualRow>,
}

impl Rows {
    /// No rows yet.
    pub fn new(schema: Rc<TableSchema>) -> Rows {
        Rows { schema, rows: Vec::new() }
    }

    /// Adds a row with values by column name. Key columns are required. Other columns without a
    /// value are null. The rows of a partition must agree on static columns. A key must not be
    /// added twice.
    pub fn add(&mut self, values: &[(&str, Value)]) {
        let schema = &self.schema;
        for (name, _) in values {
            assert!(schema.column_named(name).is_some(), "{}.{} has no column {name}", schema.keyspace, schema.name);
        }
        let row = schema.all_columns().map(|column| {
            let value = values.iter().find(|(name, _)| *name == column.name).map_or(&Value::Null, |(_, value)| value);
            let bytes = value.encode(&column.ty).unwrap_or_else(|error| {
                panic!("{}.{}.{} is no {}: {error}", schema.keyspace, schema.name, column.name, column.ty)
            });
            let is_key = matches!(column.kind, ColumnKind::PartitionKey | ColumnKind::Clustering);
            assert!(!is_key || bytes.is_some(), "{}.{}.{} is part of a key", schema.keyspace, schema.name, column.name);
            bytes.map(Bytes::from)
        });
        let row = row.collect();
        self.rows.push(row);
    }

    /// The rows, with values in the order of [`TableSchema::all_columns`].
    pub fn finish(self) -> Vec<VirtualRow> {
        self.rows
    }
}

/// Text.
pub fn text(text: impl Into<String>) -> Value {
    Value::Text(text.into())
}

/// A list of texts.
pub fn texts<T: Into<String>>(texts: impl IntoIterator<Item = T>) -> Value {
    Value::List(texts.into_iter().map(text).collect())
}

/// A map of texts.
pub fn text_map<'m>(entries: impl IntoIterator<Item = (&'m String, &'m String)>) -> Value {
    Value::Map(entries.into_iter().map(|(key, value)| (text(key), text(value))).collect())
}
