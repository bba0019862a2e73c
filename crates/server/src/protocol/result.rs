//! Encodes RESULT bodies.
//!
//! The column descriptions of a result are encoded once and kept in its metadata. Rows arrive
//! already encoded from the query processor.

use super::{Reply, Version, event, write};
use bytes::{BufMut, Bytes};
use cql::api::{ColumnSpec, Prepared, ResultKind, ResultMetadata, Rows};
use model::types::wire;

/// Bits of the metadata flags.
mod meta {
    pub const GLOBAL_TABLE: i32 = 0x0001;
    pub const HAS_MORE_PAGES: i32 = 0x0002;
    pub const NO_METADATA: i32 = 0x0004;
    pub const METADATA_CHANGED: i32 = 0x0008;
    /// ScyllaDB's flag of PREPARE for conditional statements, for clients that negotiated it.
    pub const CONDITIONAL: i32 = i32::MIN;
}

const VOID: i32 = 1;
const ROWS: i32 = 2;
const SET_KEYSPACE: i32 = 3;
const PREPARED: i32 = 4;
const SCHEMA_CHANGE: i32 = 5;

/// Appends the body of an answer without the rows. Returns the rows, which must follow.
#[inline]
pub fn answer<'a>(out: &mut impl BufMut, reply: &Reply, kind: &'a ResultKind) -> Option<&'a Bytes> {
    match kind {
        ResultKind::Void => out.put_i32(VOID),
        ResultKind::Rows(rows) => {
            rows_head(out, reply, rows);
            return Some(&rows.body);
        }
        ResultKind::SetKeyspace(name) => {
            out.put_i32(SET_KEYSPACE);
            write::string(out, name);
        }
        ResultKind::SchemaChange(change) => {
            out.put_i32(SCHEMA_CHANGE);
            event::schema_change(out, change);
        }
    }
    None
}

fn rows_head(out: &mut impl BufMut, reply: &Reply, rows: &Rows) {
    debug_assert!(rows.count > 0 || rows.body.is_empty(), "a result without rows has no values");
    let encoded = encoded(&rows.metadata);
    let (flags, columns) = split(encoded);
    // If the client's columns may be outdated, it gets the new ones even if it did not ask for any.
    let changed = reply.metadata_id.is_some_and(|known| known != rows.metadata.id());
    let perhaps = reply.metadata_id.is_none() && rows.metadata.altered.get();
    let skip_metadata = reply.skip_metadata && !changed && !perhaps;
    let mut flags = if skip_metadata { meta::NO_METADATA } else { flags };
    if changed {
        flags |= meta::METADATA_CHANGED;
    }
    if rows.paging_state.is_some() {
        flags |= meta::HAS_MORE_PAGES;
    }
    out.put_i32(ROWS);
    out.put_i32(flags);
    out.put_i32(rows.metadata.columns.len() as i32);
    if let Some(state) = &rows.paging_state {
        write::bytes(out, state);
    }
    if changed {
        write::short_bytes(out, &rows.metadata.id());
    }
    if !skip_metadata {
        out.put_slice(columns);
    }
    out.put_u32(rows.count);
}

/// Appends the body of the answer to PREPARE.
pub fn prepared(out: &mut impl BufMut, reply: &Reply, prepared: &Prepared) {
    let is_marker = |marker: &u16| usize::from(*marker) < prepared.markers.columns.len();
    debug_assert!(prepared.partition_key_markers.iter().all(is_marker), "the partition key is bound by markers");
    out.put_i32(PREPARED);
    write::short_bytes(out, &prepared.id);
    if reply.metadata_ids {
        write::short_bytes(out, &prepared.result.id());
    }
    let (flags, columns) = split(encoded(&prepared.markers));
    let mark = if reply.lwt_mark && prepared.conditional { meta::CONDITIONAL } else { 0 };
    out.put_i32(flags | mark);
    out.put_i32(prepared.markers.columns.len() as i32);
    if reply.version >= Version::V4 {
        out.put_i32(prepared.partition_key_markers.len() as i32);
        for marker in &prepared.partition_key_markers {
            out.put_u16(*marker);
        }
    }
    out.put_slice(columns);
    if prepared.result.columns.is_empty() {
        out.put_i32(meta::NO_METADATA);
        out.put_i32(0);
    } else {
        let (flags, columns) = split(encoded(&prepared.result));
        out.put_i32(flags);
        out.put_i32(prepared.result.columns.len() as i32);
        out.put_slice(columns);
    }
}

/// Splits encoded metadata into its flags and its column descriptions.
fn split(encoded: &Bytes) -> (i32, &[u8]) {
    let (flags, columns) = encoded.split_at(4);
    (i32::from_be_bytes([flags[0], flags[1], flags[2], flags[3]]), columns)
}

/// The encoded metadata, made at first use: the flags, then the column descriptions.
fn encoded(metadata: &ResultMetadata) -> &Bytes {
    metadata.encoded.get_or_init(|| {
        let columns = &metadata.columns;
        let mut out = Vec::with_capacity(16 + columns.len() * 24);
        let global = is_one_table(columns);
        out.put_i32(if global { meta::GLOBAL_TABLE } else { 0 });
        if let Some(first) = columns.first()
            && global
        {
            write::string(&mut out, &first.keyspace);
            write::string(&mut out, &first.table);
        }
        for column in columns {
            if !global {
                write::string(&mut out, &column.keyspace);
                write::string(&mut out, &column.table);
            }
            write::string(&mut out, &column.name);
            wire::write_option(&column.ty, &mut out);
        }
        // Without spare capacity, because it is kept.
        Bytes::from(out.into_boxed_slice())
    })
}

fn is_one_table(columns: &[ColumnSpec]) -> bool {
    !columns.is_empty()
        && columns.windows(2).all(|pair| pair[0].keyspace == pair[1].keyspace && pair[0].table == pair[1].table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::CqlType;
    use std::rc::Rc;

    fn metadata(tables: &[&str]) -> Rc<ResultMetadata> {
        let columns = tables
            .iter()
            .map(|table| ColumnSpec {
                keyspace: "k".into(),
                table: (*table).into(),
                name: "c".to_owned(),
                ty: CqlType::Int,
            })
            .collect();
        Rc::new(ResultMetadata { columns, ..Default::default() })
    }

    #[test]
    fn rows_with_and_without_metadata() {
        let rows = |paging_state| Rows {
            metadata: metadata(&["t", "t"]),
            paging_state,
            count: 1,
            body: Bytes::from_static(b"rows"),
        };
        let mut out = Vec::new();
        let plain = Reply::plain(Version::V4, 0);
        let kind = ResultKind::Rows(rows(None));
        assert_eq!(answer(&mut out, &plain, &kind).map(|b| &b[..]), Some(&b"rows"[..]));
        assert_eq!(out, b"\0\0\0\x02\0\0\0\x01\0\0\0\x02\0\x01k\0\x01t\0\x01c\0\x09\0\x01c\0\x09\0\0\0\x01");
        let mut out = Vec::new();
        let skip = Reply { skip_metadata: true, ..plain };
        answer(&mut out, &skip, &ResultKind::Rows(rows(Some(Bytes::from_static(b"p")))));
        assert_eq!(out, b"\0\0\0\x02\0\0\0\x06\0\0\0\x02\0\0\0\x01p\0\0\0\x01");
    }

    #[test]
    fn columns_of_two_tables_name_them() {
        let mut out = Vec::new();
        let rows = Rows { metadata: metadata(&["t", "u"]), paging_state: None, count: 0, body: Bytes::new() };
        answer(&mut out, &Reply::plain(Version::V4, 0), &ResultKind::Rows(rows));
        assert_eq!(out, b"\0\0\0\x02\0\0\0\0\0\0\0\x02\0\x01k\0\x01t\0\x01c\0\x09\0\x01k\0\x01u\0\x01c\0\x09\0\0\0\0");
    }

    #[test]
    fn prepared_by_version() {
        let statement = Prepared {
            id: [1; 16],
            markers: metadata(&["t"]),
            partition_key_markers: vec![0],
            result: Rc::new(ResultMetadata::default()),
            conditional: true,
            warnings: Vec::new(),
        };
        let (mut v3, mut v4) = (Vec::new(), Vec::new());
        prepared(&mut v3, &Reply::plain(Version::V3, 0), &statement);
        prepared(&mut v4, &Reply::plain(Version::V4, 0), &statement);
        let head = [&[0, 0, 0, 4, 0, 16][..], &[1; 16], &[0, 0, 0, 1, 0, 0, 0, 1]].concat();
        let tail = b"\0\x01k\0\x01t\0\x01c\0\x09\0\0\0\x04\0\0\0\0";
        assert_eq!(v3, [&head[..], tail].concat());
        assert_eq!(v4, [&head[..], &[0, 0, 0, 1, 0, 0], tail].concat());
    }

    #[test]
    fn metadata_that_the_client_knows_is_not_sent_and_what_has_changed_is() {
        let (old, new) = (metadata(&["t"]), metadata(&["t", "t"]));
        assert_ne!(old.id(), new.id());
        assert_eq!(old.id(), metadata(&["t"]).id());
        let rows = || {
            let (metadata, paging_state) = (new.clone(), Some(Bytes::from_static(b"p")));
            ResultKind::Rows(Rows { metadata, paging_state, count: 0, body: Bytes::new() })
        };
        let body = |skip_metadata, known| {
            let mut out = Vec::new();
            answer(
                &mut out,
                &Reply { skip_metadata, metadata_id: Some(known), ..Reply::plain(Version::V5, 0) },
                &rows(),
            );
            out
        };
        assert_eq!(body(true, new.id()), b"\0\0\0\x02\0\0\0\x06\0\0\0\x02\0\0\0\x01p\0\0\0\0");
        let columns = b"\0\x01k\0\x01t\0\x01c\0\x09\0\x01c\0\x09\0\0\0\0";
        let known = [&b"\0\0\0\x02\0\0\0\x03\0\0\0\x02\0\0\0\x01p"[..], columns].concat();
        assert_eq!(body(false, new.id()), known);
        let head = b"\0\0\0\x02\0\0\0\x0B\0\0\0\x02\0\0\0\x01p\0\x10";
        let changed = [&head[..], &new.id(), columns].concat();
        assert_eq!(body(true, old.id()), changed);
        assert_eq!(body(false, [0; 16]), changed);
    }

    #[test]
    fn changed_columns_are_sent_to_clients_without_metadata_ids() {
        let altered = metadata(&["t"]);
        altered.altered.set(true);
        let body = |reply: Reply| {
            let mut out = Vec::new();
            let rows = Rows { metadata: altered.clone(), paging_state: None, count: 0, body: Bytes::new() };
            answer(&mut out, &Reply { skip_metadata: true, ..reply }, &ResultKind::Rows(rows));
            out
        };
        assert_eq!(
            body(Reply::plain(Version::V4, 0)),
            b"\0\0\0\x02\0\0\0\x01\0\0\0\x01\0\x01k\0\x01t\0\x01c\0\x09\0\0\0\0"
        );
        let known = Reply { metadata_id: Some(altered.id()), ..Reply::plain(Version::V5, 0) };
        assert_eq!(body(known), b"\0\0\0\x02\0\0\0\x04\0\0\0\x01\0\0\0\0");
    }

    #[test]
    fn prepared_with_what_was_negotiated() {
        let mut statement = Prepared {
            id: [1; 16],
            markers: Rc::default(),
            partition_key_markers: Vec::new(),
            result: metadata(&["t"]),
            conditional: true,
            warnings: Vec::new(),
        };
        let body = |statement: &Prepared, lwt_mark| {
            let mut out = Vec::new();
            prepared(&mut out, &Reply { metadata_ids: true, lwt_mark, ..Reply::plain(Version::V4, 0) }, statement);
            out
        };
        let id = statement.result.id();
        let head = [&[0, 0, 0, 4, 0, 16][..], &[1; 16], &[0, 16], &id].concat();
        let tail = b"\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\x01\0\x01k\0\x01t\0\x01c\0\x09";
        assert_eq!(body(&statement, true), [&head[..], &[0x80, 0, 0, 0], tail].concat());
        assert_eq!(body(&statement, false), [&head[..], &[0, 0, 0, 0], tail].concat());
        statement.conditional = false;
        assert_eq!(body(&statement, true), [&head[..], &[0, 0, 0, 0], tail].concat());
    }
}
