//! The columns of a file's header matched with those of a schema; made once per file and schema
//! version.
//!
//! Rows in a file identify columns by their position in the header, rows in memory by column id.
//! Cells of columns that the schema dropped are parsed and discarded. So are cells older than the
//! drop of a column whose name is used again.

use crate::statistics::header::{Header, HeaderColumn};
use model::schema::TableSchema;
use model::time::{Seconds, Timestamp};
use model::types::CqlType;
use model::{Column, ColumnId, ColumnKind};

/// How to read or write the rows of one file under one schema version.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub min_timestamp: Timestamp,
    pub min_deletion_time: Seconds,
    pub min_ttl: i32,
    /// The fixed width of each clustering column, if it has one.
    pub clustering: Vec<Option<usize>>,
    pub statics: Columns,
    pub regulars: Columns,
}

/// The static or the regular columns, in the order of the file.
#[derive(Clone, Debug)]
pub(crate) struct Columns {
    pub targets: Vec<Target>,
    /// Whether the ids ascend in this order, so that rows are read in the order of memory.
    pub ascending: bool,
    /// Indexes into `targets` by column id.
    places: Vec<Option<u16>>,
}

/// A column of the file, and its column in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// Its id in memory; `None` if the schema no longer has it.
    pub id: Option<ColumnId>,
    /// The fixed width of its values.
    pub width: Option<usize>,
    /// Whether it is a multi-cell column.
    pub multi: bool,
    /// Cells with this timestamp or a lower one are dead, because the column of this name was
    /// dropped then.
    pub dead_until: Option<Timestamp>,
}

impl Columns {
    /// The index of a column in the file.
    #[inline]
    pub fn place(&self, id: ColumnId) -> Option<usize> {
        self.places.get(id.0 as usize).copied().flatten().map(|place| place as usize)
    }

    fn new(targets: Vec<Target>) -> Self {
        let mut places = Vec::new();
        let mut last = None;
        let mut ascending = true;
        for (place, id) in targets.iter().enumerate().filter_map(|(place, target)| Some((place, target.id?))) {
            let at = id.0 as usize;
            if places.len() <= at {
                places.resize(at + 1, None);
            }
            places[at] = Some(place as u16);
            ascending &= last.is_none_or(|last| last < id);
            last = Some(id);
        }
        Columns { targets, ascending, places }
    }
}

impl Layout {
    /// Matches a file's header with a schema. The error names a column that fits none.
    pub fn new(header: &Header, schema: &TableSchema) -> Result<Layout, String> {
        let same_keys = header.clustering.len() == schema.clustering.len()
            && header
                .clustering
                .iter()
                .zip(&schema.clustering)
                .all(|((ty, descending), column)| *descending == column.descending && compatible(ty, &column.ty));
        if !same_keys {
            return Err(format!("clustering columns differ from those of {}.{}", schema.keyspace, schema.name));
        }
        Ok(Layout {
            min_timestamp: header.min_timestamp,
            min_deletion_time: header.min_deletion_time,
            min_ttl: header.min_ttl,
            clustering: header.clustering.iter().map(|(ty, _)| ty.fixed_width()).collect(),
            statics: match_columns(&header.statics, &schema.statics, ColumnKind::Static, schema)?,
            regulars: match_columns(&header.regulars, &schema.regulars, ColumnKind::Regular, schema)?,
        })
    }
}

fn match_columns(
    file: &[HeaderColumn],
    table: &[Column],
    kind: ColumnKind,
    schema: &TableSchema,
) -> Result<Columns, String> {
    let mut targets = Vec::with_capacity(file.len());
    for column in file {
        let found = table.iter().find(|c| c.name == column.name);
        let drops = schema.dropped.iter().filter(|d| d.name == column.name && d.kind == kind);
        let dead_until = drops.map(|d| d.drop_time).max();
        let id = match found {
            Some(c) if compatible(&column.ty, &c.ty) => Some(c.id),
            // The file was written before the column was dropped and added with another type. The
            // old type does not matter: metadata of release 0.1.0 may no longer have it, and the
            // other columns must stay readable.
            Some(_) if dead_until.is_some() => None,
            Some(c) => {
                let (table, name, old, new) = (&schema.name, &column.name, &column.ty, &c.ty);
                return Err(format!("column {name} of {table} is {old} in the file and {new} in the schema"));
            }
            None => None,
        };
        let (width, multi) = (column.ty.fixed_width(), column.ty.is_multi_cell());
        targets.push(Target { id, width, multi, dead_until });
    }
    Ok(Columns::new(targets))
}

/// Whether values of the file's type can be read as values of the schema's.
fn compatible(file: &CqlType, schema: &CqlType) -> bool {
    if file.is_multi_cell() != schema.is_multi_cell() {
        return false;
    }
    alike(file, schema)
}

fn alike(file: &CqlType, schema: &CqlType) -> bool {
    match (file, schema) {
        (CqlType::List { elem: a, .. }, CqlType::List { elem: b, .. })
        | (CqlType::Set { elem: a, .. }, CqlType::Set { elem: b, .. }) => alike(a, b),
        (CqlType::Map { key: a, value: x, .. }, CqlType::Map { key: b, value: y, .. }) => alike(a, b) && alike(x, y),
        (CqlType::Tuple(a), CqlType::Tuple(b)) => {
            a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| alike(a, b))
        }
        (CqlType::Vector { elem: a, dim: x }, CqlType::Vector { elem: b, dim: y }) => x == y && alike(a, b),
        // Fields are only added at the end or renamed. The keyspace of the type may have another
        // name.
        (CqlType::Udt(a), CqlType::Udt(b)) => a.fields.iter().zip(&b.fields).all(|((_, a), (_, b))| alike(a, b)),
        (file, CqlType::Blob) => file.is_frozen() && *file != CqlType::Counter,
        (CqlType::Ascii, CqlType::Text) | (CqlType::Timeuuid, CqlType::Uuid) => true,
        (CqlType::Int | CqlType::Bigint | CqlType::Smallint | CqlType::Tinyint, CqlType::Varint) => true,
        (CqlType::Bigint, CqlType::Timestamp) | (CqlType::Timestamp, CqlType::Bigint) => true,
        (file, schema) => file == schema,
    }
}
