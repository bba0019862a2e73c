//! The columns of a file's header, matched with the columns of a schema. Made once per file and
//! schema version.
//!
//! Rows in a file identify columns by their position in the header, rows in memory by column id.
//! Cells of columns that the schema dropped are parsed and discarded. So are cells older than the
//! drop of a column whose name is used again.

use crate::statistics::header::{Header, HeaderColumn};
use model::schema::{TableSchema, last_drops};
use model::time::{Seconds, Timestamp};
use model::types::{CqlType, compatibility};
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
    /// Matches a file's header with a schema. The error names the types in the file and in the
    /// table.
    pub fn new(header: &Header, schema: &TableSchema) -> Result<Layout, String> {
        check_keys(header, schema)?;
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

/// Compares the key columns. The header has their types, not their names. A file is accepted if
/// ALTER could have given its types to the table: see [`compatibility`].
fn check_keys(header: &Header, schema: &TableSchema) -> Result<(), String> {
    // Keyspaces, names of types and names of fields may differ. The values are values of tuples.
    let fits = |rule: fn(&CqlType, &CqlType) -> bool, file: &CqlType, table: &CqlType| {
        file == table || rule(&file.expand_user_types(), &table.expand_user_types())
    };
    let differ = |key: &str, file: String, table: String| {
        let name = format!("{}.{}", schema.keyspace, schema.name);
        Err(format!("the {key} of the file has the types ({file}), but in {name} it has ({table})"))
    };
    let (file, table) = (&header.partition_key, &schema.partition_key);
    let same_length = file.len() == table.len();
    if !same_length || !file.iter().zip(table).all(|(ty, column)| fits(compatibility::keeps_bytes, ty, &column.ty)) {
        let table = table.iter().map(|column| (&column.ty, false));
        return differ("partition key", listed(file.iter().map(|ty| (ty, false))), listed(table));
    }
    let (file, table) = (&header.clustering, &schema.clustering);
    let fits = |((ty, descending), column): (&(CqlType, bool), &Column)| {
        *descending == column.descending && fits(compatibility::keeps_order, ty, &column.ty)
    };
    if file.len() != table.len() || !file.iter().zip(table).all(fits) {
        let table = table.iter().map(|column| (&column.ty, column.descending));
        return differ("clustering key", listed(file.iter().map(|(ty, down)| (ty, *down))), listed(table));
    }
    Ok(())
}

fn listed<'a>(columns: impl Iterator<Item = (&'a CqlType, bool)>) -> String {
    let text = |(ty, descending): (&CqlType, bool)| format!("{ty}{}", if descending { " DESC" } else { "" });
    columns.map(text).collect::<Vec<_>>().join(", ")
}

/// Finds the columns of a file among the columns of the table, which are sorted by name.
fn match_columns(
    file: &[HeaderColumn],
    table: &[Column],
    kind: ColumnKind,
    schema: &TableSchema,
) -> Result<Columns, String> {
    let mut targets = Vec::with_capacity(file.len());
    let drops = last_drops(&schema.dropped);
    for column in file {
        let found = table.binary_search_by(|c| c.name.cmp(&column.name)).ok().map(|at| &table[at]);
        let dead_until = drops.get(&(column.name.as_str(), kind)).copied();
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

/// Whether values of the file's type can be read as values of the schema's type. They can if ALTER
/// could have changed the column between these types (see [`compatibility`]), or if the types are
/// alike in a file of another tool.
fn compatible(file: &CqlType, schema: &CqlType) -> bool {
    // Keyspaces, names of types and names of fields may differ, as in keys.
    let expanded = |ty: &CqlType| ty.expand_user_types().freeze_nested();
    file.is_multi_cell() == schema.is_multi_cell()
        && (alike(file, schema) || compatibility::keeps_values(&expanded(file), &expanded(schema)))
}

fn alike(file: &CqlType, schema: &CqlType) -> bool {
    match (file, schema) {
        (CqlType::List { elem: a, .. }, CqlType::List { elem: b, .. })
        | (CqlType::Set { elem: a, .. }, CqlType::Set { elem: b, .. }) => alike(a, b),
        (CqlType::Map { key: a, value: x, .. }, CqlType::Map { key: b, value: y, .. }) => alike(a, b) && alike(x, y),
        (CqlType::Tuple(a), CqlType::Tuple(b)) => {
            // ALTER adds fields at the end. Old values lack them.
            a.len() <= b.len() && a.iter().zip(b.iter()).all(|(a, b)| alike(a, b))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::Input;
    use model::types::parse;
    use model::{SchemaVersion, TableId};
    use uuid::Uuid;

    fn table(partition_key: &str, clustering: &str) -> TableSchema {
        let columns = |types: &str, kind| {
            let types = types.split(';').map(str::trim).filter(|ty| !ty.is_empty()).enumerate();
            let column = |(i, ty): (usize, &str)| {
                let (ty, descending) = ty.strip_suffix(" DESC").map_or((ty, false), |ty| (ty, true));
                let ty = parse::parse(ty, &|_, _| None).expect("a type").freeze();
                Column {
                    id: ColumnId(i as u16),
                    name: format!("{kind:?}{i}"),
                    kind,
                    position: i as u16,
                    ty,
                    descending,
                }
            };
            types.map(column).collect::<Vec<_>>()
        };
        TableSchema::new(
            TableId(Uuid::from_u128(1)),
            SchemaVersion(Uuid::from_u128(2)),
            "ks",
            "t",
            columns(partition_key, ColumnKind::PartitionKey),
            columns(clustering, ColumnKind::Clustering),
            Vec::new(),
            Vec::new(),
            Vec::new(),
            Default::default(),
        )
    }

    /// The header as it is read from the file.
    fn header(schema: &TableSchema) -> Header {
        let mut bytes = Vec::new();
        Header::new(schema, 0, 0, 0).write(&mut bytes);
        Header::read(&mut Input(&bytes)).expect("it can be read")
    }

    /// The keys of the file and of the table, and whether the table can read the file.
    const CASES: &[(&str, &str, bool)] = &[
        ("int", "int", true),
        ("ascii", "text", true),
        ("text", "blob", true),
        ("timeuuid", "uuid", true),
        ("bigint", "timestamp", true),
        ("frozen<set<int>>", "set<int>", true),
        ("tuple<int, ascii>", "tuple<int, text>", true),
        ("int; text", "int; text", true),
        ("int", "text", false),
        ("int", "blob", false),
        ("int", "bigint", false),
        ("int", "varint", false),
        ("text", "ascii", false),
        ("bigint", "uuid", false),
        ("int; text", "text; int", false),
        ("int; text", "int", false),
        ("int", "int; text", false),
        ("int; text", "blob", false),
        ("tuple<int>", "tuple<int, int>", false),
        ("int / int", "int / int", true),
        ("int / int DESC", "int / int DESC", true),
        ("int / ascii", "int / text", true),
        ("int / tuple<int>", "int / tuple<int, int>", true),
        ("int / int", "int / int DESC", false),
        ("int / int DESC", "int / int", false),
        // The rows of the file would not be in the order of the table.
        ("int / int", "int / blob", false),
        ("int / double", "int / blob", false),
        ("int / timeuuid", "int / uuid", false),
        ("int / bigint", "int / varint", false),
        ("int / int", "int", false),
        ("int", "int / int", false),
    ];

    #[test]
    fn a_file_is_read_only_into_a_table_with_its_keys() {
        for (file, own, fits) in CASES {
            let keys = |text: &str| {
                let (partition_key, clustering) = text.split_once('/').unwrap_or((text, ""));
                table(partition_key, clustering)
            };
            let matched = Layout::new(&header(&keys(file)), &keys(own));
            assert_eq!(matched.is_ok(), *fits, "{file} into {own}: {:?}", matched.err());
        }
    }

    #[test]
    fn the_error_says_what_the_file_has_and_what_the_table_has() {
        let error = |file: &TableSchema, own: &TableSchema| Layout::new(&header(file), own).expect_err("refused");
        assert_eq!(
            error(&table("int; text", ""), &table("int", "")),
            "the partition key of the file has the types (int, text), but in ks.t it has (int)"
        );
        assert_eq!(
            error(&table("int", "text; int DESC"), &table("int", "text; int")),
            "the clustering key of the file has the types (text, int DESC), but in ks.t it has (text, int)"
        );
    }
}
