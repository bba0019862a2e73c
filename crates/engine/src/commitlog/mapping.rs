//! The mapping of the column ids in a record to columns. It is written into each segment before the
//! first record that uses it.
//!
//! ```text
//! u8 format (1), 16 bytes table id, 16 bytes schema version, text keyspace, text table, u16 count
//! column*: u16 id, u8 kind (0 partition key, 1 clustering, 2 static, 3 regular), u8 dropped,
//!          text name, text type
//! text: u32 length, UTF-8
//! ```
//!
//! Types are written as class names, because these include the fields of user types and need no
//! schema.

use model::types::class_name;
use model::{ColumnId, ColumnKind, SchemaVersion, TableId, TableSchema};

const FORMAT: u8 = 1;

/// The columns of one version of a table's schema.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ColumnMapping {
    /// The table.
    pub table: TableId,
    /// The schema version.
    pub version: SchemaVersion,
    /// The keyspace's name then.
    pub keyspace: String,
    /// The table's name then.
    pub name: String,
    /// The columns: key columns in order, then static and regular ones, then dropped ones.
    pub columns: Vec<MappedColumn>,
}

/// One column.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MappedColumn {
    /// For static and regular columns, the id in rows; for key columns the position.
    pub id: ColumnId,
    /// Its part.
    pub kind: ColumnKind,
    /// Whether it had been dropped.
    pub dropped: bool,
    /// Its name.
    pub name: String,
    /// Its type as a class name (`model::types::class_name`); descending order is a `ReversedType`.
    pub ty: String,
}

impl ColumnMapping {
    /// The mapping of a schema.
    pub fn of(schema: &TableSchema) -> ColumnMapping {
        let live = schema.all_columns().map(|column| MappedColumn {
            id: if matches!(column.kind, ColumnKind::Static | ColumnKind::Regular) {
                column.id
            } else {
                ColumnId(column.position)
            },
            kind: column.kind,
            dropped: false,
            name: column.name.clone(),
            ty: class_name::of_clustering(&column.ty, column.descending),
        });
        let dropped = schema.dropped.iter().map(|column| MappedColumn {
            id: column.id,
            kind: column.kind,
            dropped: true,
            name: column.name.clone(),
            ty: class_name::of(&column.ty),
        });
        ColumnMapping {
            table: schema.id,
            version: schema.version,
            keyspace: schema.keyspace.clone(),
            name: schema.name.clone(),
            columns: live.chain(dropped).collect(),
        }
    }

    /// Length of the encoded form.
    pub(super) fn encoded_len(&self) -> usize {
        let columns = self.columns.iter().map(|column| 4 + 8 + column.name.len() + column.ty.len());
        1 + 32 + 8 + self.keyspace.len() + self.name.len() + 2 + columns.sum::<usize>()
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(u16::try_from(self.columns.len()).is_ok(), "the number of columns fits two bytes");
        let start = out.len();
        out.push(FORMAT);
        out.extend_from_slice(self.table.as_bytes());
        out.extend_from_slice(self.version.as_bytes());
        push_text(out, &self.keyspace);
        push_text(out, &self.name);
        out.extend_from_slice(&(self.columns.len() as u16).to_le_bytes());
        for column in &self.columns {
            out.extend_from_slice(&column.id.0.to_le_bytes());
            out.push(match column.kind {
                ColumnKind::PartitionKey => 0,
                ColumnKind::Clustering => 1,
                ColumnKind::Static => 2,
                ColumnKind::Regular => 3,
            });
            out.push(column.dropped.into());
            push_text(out, &column.name);
            push_text(out, &column.ty);
        }
        debug_assert_eq!(out.len() - start, self.encoded_len(), "a mapping takes the room that was kept for it");
    }

    /// Reads an encoded mapping; `None` if it is malformed.
    pub(super) fn decode(mut bytes: &[u8]) -> Option<ColumnMapping> {
        let rest = &mut bytes;
        if take::<1>(rest)? != [FORMAT] {
            return None;
        }
        let table = TableId::from_bytes(take(rest)?);
        let version = SchemaVersion::from_bytes(take(rest)?);
        let keyspace = take_text(rest)?;
        let name = take_text(rest)?;
        let mut columns = Vec::new();
        for _ in 0..u16::from_le_bytes(take(rest)?) {
            let id = ColumnId(u16::from_le_bytes(take(rest)?));
            let [kind, dropped] = take(rest)?;
            let kind = match kind {
                0 => ColumnKind::PartitionKey,
                1 => ColumnKind::Clustering,
                2 => ColumnKind::Static,
                3 => ColumnKind::Regular,
                _ => return None,
            };
            columns.push(MappedColumn {
                id,
                kind,
                dropped: dropped != 0,
                name: take_text(rest)?,
                ty: take_text(rest)?,
            });
        }
        rest.is_empty().then_some(ColumnMapping { table, version, keyspace, name, columns })
    }
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(*head)
}

fn take_text(rest: &mut &[u8]) -> Option<String> {
    let len = u32::from_le_bytes(take(rest)?) as usize;
    let (head, tail) = rest.split_at_checked(len)?;
    *rest = tail;
    String::from_utf8(head.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn column_mappings_round_trip_and_truncated_ones_are_refused() {
        let column = |id, kind, dropped, name: &str, ty: &str| MappedColumn {
            id: ColumnId(id),
            kind,
            dropped,
            name: name.into(),
            ty: ty.into(),
        };
        let mapping = ColumnMapping {
            table: TableId::from_bytes([1; 16]),
            version: SchemaVersion::from_bytes([2; 16]),
            keyspace: "ks".into(),
            name: "Täble".into(),
            columns: vec![
                column(0, ColumnKind::PartitionKey, false, "p", "Int32Type"),
                column(0, ColumnKind::Clustering, false, "c", "ReversedType(UTF8Type)"),
                column(3, ColumnKind::Static, false, "s", "LongType"),
                column(9, ColumnKind::Regular, true, "gone", "BytesType"),
            ],
        };
        let mut bytes = Vec::new();
        mapping.encode(&mut bytes);
        assert_eq!(bytes.len(), mapping.encoded_len());
        assert_eq!(ColumnMapping::decode(&bytes), Some(mapping));
        for len in 0..bytes.len() {
            assert_eq!(ColumnMapping::decode(&bytes[..len]), None);
        }
        bytes.push(0);
        assert_eq!(ColumnMapping::decode(&bytes), None);
    }
}
