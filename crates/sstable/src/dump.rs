//! An sstable as JSON, in the form of Cassandra's `sstabledump -t` (raw timestamps), without its
//! `position` fields.
//!
//! Everything but the names of key columns comes from the serialization header, and those names are
//! not shown. Files that Cassandra 5 refuses, because of what only ScyllaDB writes, are shown as
//! Cassandra 4.1 prints them: without the kind of the table.

mod name;
mod text;

use crate::error::Error;
use crate::reader::ReadOptions;
use crate::statistics::header::name_order;
use crate::table::Sstable;
use model::TableSchema;
use model::fragment::Fragment;
use model::hex;
use model::key::{Clustering, ClusteringCut, DecoratedKey, split_partition_key};
use model::range::{PartitionRange, Slice};
use model::row::{Cell, Marker, Row, State};
use model::time::{Seconds, Tombstone};
use model::types::CqlType;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;
use std::rc::Rc;
use text::{json, plain, quoted};

/// Writes all partitions to `out`. `now` decides which cells are shown as expired. `progress` is
/// called repeatedly, with the bytes of content read.
pub async fn dump_json(
    table: &Rc<Sstable>,
    now: Seconds,
    out: &mut dyn Write,
    mut progress: impl FnMut(u64),
) -> Result<(), Error> {
    let schema = table.header_schema("", "");
    let slice = Rc::new(Slice::full());
    let mut reader = table.reader(&schema, PartitionRange::FULL, slice, ReadOptions::BACKGROUND);
    reader.show_every_marker();
    let mut dump = Dump {
        schema,
        now,
        shows_table_kind: !is_scylla_only(table),
        text: String::from("["),
        open: Tombstone::LIVE,
        partitions: 0,
        rows: 0,
    };
    let mut fragments = VecDeque::new();
    loop {
        let more = reader.fill(&mut fragments).await?;
        for fragment in fragments.drain(..) {
            dump.fragment(&fragment);
        }
        progress(reader.position());
        out.write_all(dump.text.as_bytes()).map_err(Error::io(Path::new("the output")))?;
        dump.text.clear();
        if !more {
            out.write_all(b"\n]\n").map_err(Error::io(Path::new("the output")))?;
            return Ok(());
        }
    }
}

/// Whether the file is a variant of `me` that only ScyllaDB writes, and that Cassandra 5 refuses.
fn is_scylla_only(table: &Sstable) -> bool {
    let compression = table.compression_facts();
    let options = compression.iter().flat_map(|facts| &facts.options);
    table.header().loose_minima || options.into_iter().any(|(name, _)| name == "crc_check_chance")
}

struct Dump {
    schema: Rc<TableSchema>,
    now: Seconds,
    shows_table_kind: bool,
    text: String,
    open: Tombstone,
    partitions: u64,
    rows: u64,
}

/// The columns of a partition key as text.
pub fn key_texts(schema: &TableSchema, key: &[u8]) -> Vec<String> {
    let types: Vec<&CqlType> = schema.partition_key.iter().map(|column| &column.ty).collect();
    match split_partition_key(key, types.len()) {
        Some(components) => components.iter().zip(types).map(|(bytes, ty)| plain(ty, bytes)).collect(),
        None => vec![hex(key)],
    }
}

/// The columns of a clustering key as text, in the form of [`key_texts`].
pub fn clustering_key_texts(schema: &TableSchema, key: &Clustering) -> Vec<String> {
    key.components().zip(&schema.clustering).map(|(bytes, column)| plain(&column.ty, bytes)).collect()
}

/// The clustering columns as JSON values. Columns that a prefix lacks are shown as stars with
/// `pad_with_stars`, else not at all.
pub fn clustering_json(schema: &TableSchema, prefix: &Clustering, pad_with_stars: bool) -> Vec<String> {
    let mut components = prefix.components();
    let columns = schema.clustering.iter();
    let text = columns.map_while(|column| match components.next() {
        Some(bytes) => Some(json(&column.ty, bytes)),
        None => pad_with_stars.then(|| "\"*\"".to_string()),
    });
    text.collect()
}

fn deletion(tombstone: Tombstone) -> String {
    let Tombstone { timestamp, deletion_time } = tombstone;
    format!(
        "\"deletion_info\" : {{ \"marked_deleted\" : \"{timestamp}\", \"local_delete_time\" : \"{deletion_time}\" }}"
    )
}

impl Dump {
    fn fragment(&mut self, fragment: &Fragment) {
        match fragment {
            Fragment::PartitionStart { key, tombstone } => self.start(key, *tombstone),
            Fragment::Static(row) => self.row(None, row),
            Fragment::Row { key, row } => self.row(Some(key), row),
            Fragment::Change { at, tombstone } => self.change(at, *tombstone),
            Fragment::PartitionEnd => self.text.push_str("\n    ]\n  }"),
        }
    }

    fn start(&mut self, key: &DecoratedKey, tombstone: Tombstone) {
        self.text.push_str(if self.partitions == 0 { "\n" } else { ",\n" });
        self.partitions += 1;
        self.rows = 0;
        self.open = Tombstone::LIVE;
        let components: Vec<String> = key_texts(&self.schema, &key.key).iter().map(|text| quoted(text)).collect();
        let kind = if self.shows_table_kind { "    \"table kind\" : \"REGULAR\",\n" } else { "" };
        let _ = write!(self.text, "  {{\n{kind}    \"partition\" : {{\n      \"key\" : [ ");
        let _ = write!(self.text, "{} ]", components.join(", "));
        if !tombstone.is_live() {
            let _ = write!(self.text, ",\n      {}", deletion(tombstone));
        }
        self.text.push_str("\n    },\n    \"rows\" : [");
    }

    fn next_row(&mut self, kind: &str) {
        self.text.push_str(if self.rows == 0 { "\n" } else { ",\n" });
        self.rows += 1;
        let _ = write!(self.text, "      {{\n        \"type\" : \"{kind}\"");
    }

    fn clustering(&self, prefix: &Clustering, pad_with_stars: bool) -> String {
        format!("\"clustering\" : [ {} ]", clustering_json(&self.schema, prefix, pad_with_stars).join(", "))
    }

    fn row(&mut self, key: Option<&Clustering>, row: &Row) {
        self.next_row(if key.is_some() { "row" } else { "static_block" });
        if let Some(key) = key
            && !self.schema.clustering.is_empty()
        {
            let clustering = self.clustering(key, false);
            let _ = write!(self.text, ",\n        {clustering}");
        }
        let (marker, tombstone, cells) = row.parts();
        if let Some(marker) = marker {
            let expiry = if marker.ttl == 0 { String::new() } else { self.expiry(marker.ttl, marker.expiry) };
            let timestamp = marker.timestamp;
            let _ = write!(self.text, ",\n        \"liveness_info\" : {{ \"tstamp\" : \"{timestamp}\"{expiry} }}");
        }
        if !tombstone.is_live() {
            let _ = write!(self.text, ",\n        {}", deletion(tombstone));
        }
        let shown: Vec<(String, String)> = cells.map(|cell| self.cell(&cell, marker)).collect();
        // Columns are sorted by name, as the printer's map does; cells of one column stay in order.
        let mut shown = shown;
        shown
            .sort_by(|(a, _), (b, _)| self.is_multi_cell(a).cmp(&self.is_multi_cell(b)).then_with(|| name_order(a, b)));
        let texts: Vec<String> = shown.into_iter().map(|(_, text)| format!("\n          {text}")).collect();
        let _ = write!(self.text, ",\n        \"cells\" : [{}\n        ]\n      }}", texts.join(","));
    }

    /// For the sort: single cells come first.
    fn is_multi_cell(&self, name: &str) -> bool {
        self.schema.column_named(name).is_some_and(|column| column.ty.is_multi_cell())
    }

    fn expiry(&self, ttl: i32, expiry: Seconds) -> String {
        let expired = expiry < self.now;
        format!(", \"ttl\" : {ttl}, \"expires_at\" : \"{expiry}\", \"expired\" : {expired}")
    }

    fn cell(&self, cell: &Cell<'_>, marker: Option<Marker>) -> (String, String) {
        let Some(column) = self.schema.column(cell.column) else { return Default::default() };
        let mut out = format!("{{ \"name\" : {}", quoted(&name::in_statement(&column.name)));
        if let Some(tombstone) = cell.as_complex_deletion() {
            let _ = write!(out, ", {} }}", deletion(tombstone));
            return (column.name.clone(), out);
        }
        let mut ty = &column.ty;
        let empty = CqlType::Empty;
        if let Some(path) = cell.path {
            let field = match ty {
                CqlType::Udt(user_type) => {
                    let index = path.first_chunk().map_or(u16::MAX, |bytes| u16::from_be_bytes(*bytes));
                    user_type.fields.get(index as usize)
                }
                _ => None,
            };
            let shown = match (&column.ty, field) {
                (CqlType::Udt(_), field) => field.map_or_else(|| hex(path), |(name, _)| name.clone()),
                (CqlType::List { .. }, _) => plain(&CqlType::Timeuuid, path),
                (CqlType::Set { elem, .. }, _) => plain(elem, path),
                (CqlType::Map { key, .. }, _) => plain(key, path),
                _ => hex(path),
            };
            let _ = write!(out, ", \"path\" : [ {} ]", quoted(&shown));
            ty = match (&column.ty, field) {
                (_, Some((_, ty))) => ty,
                (CqlType::List { elem, .. }, _) => elem,
                (CqlType::Map { value, .. }, _) => value,
                _ => &empty,
            };
        }
        if let State::Dead { deletion_time } = cell.state {
            let _ = write!(out, ", \"deletion_info\" : {{ \"local_delete_time\" : \"{deletion_time}\" }}");
        } else if matches!((&column.ty, cell.path), (CqlType::Set { .. }, Some(_))) {
            out.push_str(", \"value\" : \"\"");
        } else {
            let _ = write!(out, ", \"value\" : {}", json(ty, cell.value));
        }
        if marker.is_none_or(|marker| marker.timestamp != cell.timestamp) {
            let _ = write!(out, ", \"tstamp\" : \"{}\"", cell.timestamp);
        }
        if let State::Expiring { ttl, expiry } = cell.state
            && marker.is_none_or(|marker| marker.ttl != ttl)
        {
            out.push_str(&self.expiry(ttl, expiry));
        }
        out.push_str(" }");
        (column.name.clone(), out)
    }

    fn change(&mut self, at: &ClusteringCut, to: Tombstone) {
        let from = std::mem::replace(&mut self.open, to);
        let both = !from.is_live() && !to.is_live();
        self.next_row(if both { "range_tombstone_boundary" } else { "range_tombstone_bound" });
        let prefix = match at.prefix.is_empty() {
            true => String::new(),
            false => format!("{}, ", self.clustering(&at.prefix, true)),
        };
        for (side, tombstone, inclusive) in [("start", to, !at.after), ("end", from, at.after)] {
            if !tombstone.is_live() {
                let kind = if inclusive { "inclusive" } else { "exclusive" };
                let (deletion, text) = (deletion(tombstone), &mut self.text);
                let _ = write!(text, ",\n        \"{side}\" : {{ \"type\" : \"{kind}\", {prefix}{deletion} }}");
            }
        }
        self.text.push_str("\n      }");
    }
}
