//! The serialization header: the schema at the time of writing, and the minima on which the
//! differences in Data.db are based.
//!
//! It suffices to parse the file. Key columns have no names in it.

use crate::input::{Fault, Input, Parsed, write_vbytes};
use model::time::{Seconds, Timestamp};
use model::types::vint::write_unsigned;
use model::types::{CqlType, class_name};
use model::{Column, ColumnId, ColumnKind, SchemaVersion, TableId, TableSchema};
use std::cmp::Ordering;
use uuid::Uuid;

/// 2015-09-22, in seconds and in microseconds: the base of the minima themselves.
const EPOCH_SECONDS: i64 = 1_442_880_000;
const EPOCH_MICROS: i64 = EPOCH_SECONDS * 1_000_000;
/// The most columns that a file may have.
const MAX_COLUMNS: u64 = 1 << 16;

/// The serialization header of an sstable.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// Timestamps are stored as differences from this.
    pub min_timestamp: Timestamp,
    /// Deletion times and expiries are stored as differences from this.
    pub min_deletion_time: Seconds,
    /// TTLs are stored as differences from this.
    pub min_ttl: i32,
    /// Whether "none" is stored as a minimum of more than 32 bits, as ScyllaDB does. Cassandra 5
    /// refuses such files.
    pub loose_minima: bool,
    /// The types of the partition key's columns.
    pub partition_key: Vec<CqlType>,
    /// The types of the clustering columns, and whether they are in descending order.
    pub clustering: Vec<(CqlType, bool)>,
    /// Static columns in the order of Data.db: single cells by name, then multi-cell ones by name.
    pub statics: Vec<HeaderColumn>,
    /// Regular columns in the same order.
    pub regulars: Vec<HeaderColumn>,
}

/// A static or regular column.
#[derive(Clone, Debug, PartialEq)]
pub struct HeaderColumn {
    /// The name.
    pub name: String,
    /// The type.
    pub ty: CqlType,
}

/// Cassandra's order of column names: by bytes, but with the highest bit of the first byte
/// reversed.
pub(crate) fn name_order(a: &str, b: &str) -> Ordering {
    let first = |name: &str| name.bytes().next().unwrap_or(0) ^ 0x80;
    first(a).cmp(&first(b)).then_with(|| a.cmp(b))
}

/// Sorts columns as they are written: single cells first, then by name, as Cassandra sorts them
/// when it reads the file.
fn in_file_order(columns: &mut [HeaderColumn]) {
    columns.sort_by(|a, b| a.ty.is_multi_cell().cmp(&b.ty.is_multi_cell()).then_with(|| name_order(&a.name, &b.name)));
}

/// Sorts the columns of a header into the order of the file's rows. Cassandra lists them in that
/// order. Other writers (ScyllaDB, earlier releases of Messina) sort them by bytes, and some mix
/// single-cell and multi-cell columns.
fn as_written(columns: &mut [HeaderColumn]) {
    columns.sort_by_key(|column| column.ty.is_multi_cell());
    let in_some_order = |order: fn(&str, &str) -> Ordering| {
        columns
            .chunk_by(|a, b| a.ty.is_multi_cell() == b.ty.is_multi_cell())
            .all(|alike| alike.is_sorted_by(|a, b| order(&a.name, &b.name).is_lt()))
    };
    if !in_some_order(name_order) && !in_some_order(str::cmp) {
        columns.sort_by(|a, b| (a.ty.is_multi_cell(), &a.name).cmp(&(b.ty.is_multi_cell(), &b.name)));
    }
}

impl Header {
    /// The header for writing rows of this schema, with these minima.
    pub fn new(schema: &TableSchema, min_timestamp: Timestamp, min_deletion_time: Seconds, min_ttl: i32) -> Self {
        let columns = |columns: &[Column]| {
            let mut out: Vec<_> =
                columns.iter().map(|c| HeaderColumn { name: c.name.clone(), ty: c.ty.freeze_nested() }).collect();
            in_file_order(&mut out);
            out
        };
        Header {
            min_timestamp,
            min_deletion_time,
            min_ttl,
            loose_minima: false,
            partition_key: schema.partition_key.iter().map(|c| c.ty.clone()).collect(),
            clustering: schema.clustering.iter().map(|c| (c.ty.clone(), c.descending)).collect(),
            statics: columns(&schema.statics),
            regulars: columns(&schema.regulars),
        }
    }

    /// The minima of a file without any timestamp, deletion time or TTL.
    pub const NO_MINIMA: (Timestamp, Seconds, i32) = (EPOCH_MICROS, EPOCH_SECONDS as Seconds, 0);

    pub(crate) fn read(input: &mut Input<'_>) -> Parsed<Self> {
        // Old writers store a 64-bit "none" here. Its low half gives the same as the arithmetic of
        // other readers.
        let min_timestamp = (input.uvint()? as i64).wrapping_add(EPOCH_MICROS);
        let deletion_time = (input.uvint()? as i64).wrapping_add(EPOCH_SECONDS);
        let ttl = input.uvint()? as i64;
        let (min_deletion_time, min_ttl) = (deletion_time as Seconds, ttl as i32);
        let loose_minima = i64::from(min_deletion_time) != deletion_time || i64::from(min_ttl) != ttl;
        let partition_key = class_name::parse_partition_key(text(input.vbytes()?)?).map_err(|_| BAD_TYPE)?;
        let partition_key = partition_key.iter().map(CqlType::freeze).collect();
        let count = input.uvint()?;
        if count > MAX_COLUMNS {
            return Err(Fault::Bad("there are too many clustering columns"));
        }
        let mut clustering = Vec::new();
        for _ in 0..count {
            let (ty, descending) = class_name::parse_clustering(text(input.vbytes()?)?).map_err(|_| BAD_TYPE)?;
            clustering.push((ty.freeze(), descending));
        }
        let statics = read_columns(input)?;
        let regulars = read_columns(input)?;
        Ok(Header {
            min_timestamp,
            min_deletion_time,
            min_ttl,
            loose_minima,
            partition_key,
            clustering,
            statics,
            regulars,
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        write_unsigned(self.min_timestamp.wrapping_sub(EPOCH_MICROS) as u64, out);
        write_unsigned(self.min_deletion_time.wrapping_sub(EPOCH_SECONDS as i32) as i64 as u64, out);
        write_unsigned(self.min_ttl as i64 as u64, out);
        write_vbytes(class_name::of_partition_key(&self.partition_key).as_bytes(), out);
        write_unsigned(self.clustering.len() as u64, out);
        for (ty, descending) in &self.clustering {
            write_vbytes(class_name::of_clustering(ty, *descending).as_bytes(), out);
        }
        for columns in [&self.statics, &self.regulars] {
            write_unsigned(columns.len() as u64, out);
            for column in columns {
                write_vbytes(column.name.as_bytes(), out);
                write_vbytes(class_name::of(&column.ty).as_bytes(), out);
            }
        }
    }

    /// A schema made of the header alone, for tools. Key columns are named `pk`, `pk1`, ... and
    /// `ck`, `ck1`, ...; column ids follow the order of the file.
    pub fn schema(&self, keyspace: &str, table: &str) -> TableSchema {
        let column = |id: usize, name: String, kind, ty: CqlType, descending| Column {
            id: ColumnId(id as u16),
            name,
            kind,
            position: 0,
            ty,
            descending,
        };
        let key_name =
            |base: &str, i: usize, of: usize| if of == 1 { base.to_string() } else { format!("{base}{}", i + 1) };
        let keys = self.partition_key.iter().enumerate().map(|(i, ty)| {
            let name = key_name("pk", i, self.partition_key.len());
            column(i, name, ColumnKind::PartitionKey, ty.clone(), false)
        });
        let clustering = self.clustering.iter().enumerate().map(|(i, (ty, descending))| {
            let name = key_name("ck", i, self.clustering.len());
            column(i, name, ColumnKind::Clustering, ty.clone(), *descending)
        });
        let first_regular = self.statics.len();
        let cells = |columns: &[HeaderColumn], base: usize, kind| {
            let each = columns.iter().enumerate();
            each.map(|(i, c)| column(base + i, c.name.clone(), kind, c.ty.clone(), false)).collect::<Vec<_>>()
        };
        TableSchema::new(
            TableId(Uuid::nil()),
            SchemaVersion(Uuid::nil()),
            keyspace,
            table,
            keys.collect(),
            clustering.collect(),
            cells(&self.statics, 0, ColumnKind::Static),
            cells(&self.regulars, first_regular, ColumnKind::Regular),
            Vec::new(),
            Default::default(),
        )
    }
}

const BAD_TYPE: Fault = Fault::Bad("a type in the serialization header is not valid");

fn text(bytes: &[u8]) -> Parsed<&str> {
    std::str::from_utf8(bytes).map_err(|_| Fault::Bad("a text is not UTF-8"))
}

fn read_columns(input: &mut Input<'_>) -> Parsed<Vec<HeaderColumn>> {
    let count = input.uvint()?;
    if count > MAX_COLUMNS {
        return Err(Fault::Bad("there are too many columns"));
    }
    let mut columns = Vec::new();
    for _ in 0..count {
        let name = text(input.vbytes()?)?.to_string();
        let ty = class_name::parse(text(input.vbytes()?)?).map_err(|_| BAD_TYPE)?.freeze_nested();
        columns.push(HeaderColumn { name, ty });
    }
    as_written(&mut columns);
    if columns.windows(2).any(|pair| pair[0].name == pair[1].name) {
        return Err(Fault::Bad("a column occurs twice"));
    }
    Ok(columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns with capital letters are sets.
    fn sorted(names: &[&str], sort: fn(&mut [HeaderColumn])) -> Vec<String> {
        let column = |name: &&str| {
            let is_set = name.chars().any(char::is_uppercase);
            HeaderColumn { name: name.to_string(), ty: if is_set { CqlType::set(CqlType::Int) } else { CqlType::Int } }
        };
        let mut columns: Vec<_> = names.iter().map(column).collect();
        sort(&mut columns);
        columns.into_iter().map(|column| column.name).collect()
    }

    #[test]
    fn files_are_written_in_the_order_of_cassandra_and_read_in_the_order_of_their_writer() {
        assert_eq!(sorted(&["b", "a", "É", "é", "A", "", "ü"], in_file_order), ["é", "ü", "", "a", "b", "É", "A"]);
        let kept: [&[&str]; 2] = [&["é", "a", "b", "É", "A"], &["a", "b", "é", "A", "É"]];
        for names in kept {
            assert_eq!(sorted(names, as_written), names);
        }
        assert_eq!(
            sorted(&["A", "a", "B", "b", "É", "é"], as_written),
            ["a", "b", "é", "A", "B", "É"],
            "by name alone"
        );
        assert_eq!(sorted(&["b", "a", "é"], as_written), ["a", "b", "é"], "in no order");
    }
}
