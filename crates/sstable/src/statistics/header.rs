//! The serialization header: the schema as of writing, and the minima that deltas in Data.db are taken from.
//!
//! It is all that is needed to parse the file. Key columns have no names in it.

use crate::input::{Fault, Input, Parsed, write_vbytes};
use model::time::{Seconds, Timestamp};
use model::types::vint::write_unsigned;
use model::types::{CqlType, class_name};
use model::{Column, ColumnId, ColumnKind, SchemaVersion, TableId, TableSchema};
use uuid::Uuid;

/// 2015-09-22 in microseconds, and in seconds: what the minima themselves are taken from.
const EPOCH_SECONDS: i64 = 1_442_880_000;
const EPOCH_MICROS: i64 = EPOCH_SECONDS * 1_000_000;
/// The most columns a file may claim.
const MAX_COLUMNS: u64 = 1 << 16;

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// Timestamps are stored as differences from this.
    pub min_timestamp: Timestamp,
    /// Deletion times and expiries are stored as differences from this.
    pub min_deletion_time: Seconds,
    /// TTLs are stored as differences from this.
    pub min_ttl: i32,
    /// Types of the partition key's columns.
    pub partition_key: Vec<CqlType>,
    /// Types of the clustering columns, and whether they descend.
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

fn in_file_order(columns: &mut [HeaderColumn]) {
    columns.sort_by(|a, b| {
        a.ty.is_multi_cell().cmp(&b.ty.is_multi_cell()).then_with(|| a.name.as_bytes().cmp(b.name.as_bytes()))
    });
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
            partition_key: schema.partition_key.iter().map(|c| c.ty.clone()).collect(),
            clustering: schema.clustering.iter().map(|c| (c.ty.clone(), c.descending)).collect(),
            statics: columns(&schema.statics),
            regulars: columns(&schema.regulars),
        }
    }

    /// The minima when nothing has a timestamp, deletion time or TTL.
    pub const NO_MINIMA: (Timestamp, Seconds, i32) = (EPOCH_MICROS, EPOCH_SECONDS as Seconds, 0);

    pub(crate) fn read(input: &mut Input<'_>) -> Parsed<Self> {
        // Old writers put 64-bit "none" here; keeping the low half is what everybody's arithmetic amounts to.
        let min_timestamp = (input.uvint()? as i64).wrapping_add(EPOCH_MICROS);
        let min_deletion_time = (input.uvint()? as i64).wrapping_add(EPOCH_SECONDS) as Seconds;
        let min_ttl = input.uvint()? as i32;
        let partition_key = class_name::parse_partition_key(text(input.vbytes()?)?).map_err(|_| BAD_TYPE)?;
        let count = input.uvint()?;
        if count > MAX_COLUMNS {
            return Err(Fault::Bad("number of clustering columns"));
        }
        let mut clustering = Vec::new();
        for _ in 0..count {
            let (ty, descending) = class_name::parse_clustering(text(input.vbytes()?)?).map_err(|_| BAD_TYPE)?;
            clustering.push((ty.freeze(), descending));
        }
        let statics = read_columns(input)?;
        let regulars = read_columns(input)?;
        Ok(Header { min_timestamp, min_deletion_time, min_ttl, partition_key, clustering, statics, regulars })
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

    /// A schema made of the header alone, for tools: key columns are called `pk`, `pk1`, ... and `ck`, `ck1`, ...; column ids
    /// follow the order of the file.
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

const BAD_TYPE: Fault = Fault::Bad("type in the serialization header");

fn text(bytes: &[u8]) -> Parsed<&str> {
    std::str::from_utf8(bytes).map_err(|_| Fault::Bad("text that is not UTF-8"))
}

fn read_columns(input: &mut Input<'_>) -> Parsed<Vec<HeaderColumn>> {
    let count = input.uvint()?;
    if count > MAX_COLUMNS {
        return Err(Fault::Bad("number of columns"));
    }
    let mut columns = Vec::new();
    for _ in 0..count {
        let name = text(input.vbytes()?)?.to_string();
        let ty = class_name::parse(text(input.vbytes()?)?).map_err(|_| BAD_TYPE)?.freeze_nested();
        columns.push(HeaderColumn { name, ty });
    }
    in_file_order(&mut columns);
    if columns.windows(2).any(|pair| pair[0].name == pair[1].name) {
        return Err(Fault::Bad("a column stands twice"));
    }
    Ok(columns)
}
