//! Converts a fragment to a row: its position in key columns, and its `metadata` and `value` as
//! JSON.
//!
//! The JSON has the same members as ScyllaDB's sstable dumps, so that tools can read both.

use super::MOST_BYTES;
use crate::source::VirtualRow;
use bytes::Bytes;
use model::CqlType;
use model::counter;
use model::fragment::Fragment;
use model::hex;
use model::key::{Clustering, DecoratedKey, encode_partition_key, split_partition_key};
use model::row::{Cell, Row, State};
use model::schema::{Column, ColumnKind, TableSchema};
use model::time::{DEAD_MARKER_TTL, Seconds, Tombstone};
use model::types::{JsonNotation, push_text, shown_limit, temporal};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;

/// The source of a virtual table's rows.
const VIRTUAL_SOURCE: &str = "virtual-table";

/// The region of a partition in which a fragment is.
#[derive(Clone, Copy)]
enum Region {
    Start = 0,
    Static = 1,
    Clustered = 2,
    End = 3,
}

/// The position among rows: a key or a prefix, and the side of it.
type Position<'a> = Option<(&'a Clustering, i8)>;

/// The row for a fragment, with values in the order of the columns of `schema_of`.
pub(super) fn row(table: &TableSchema, key: &DecoratedKey, source: &str, fragment: &Fragment) -> VirtualRow {
    let count = table.partition_key.len();
    let key: Vec<Option<Bytes>> = match split_partition_key(&key.key, count) {
        Some(components) => components.into_iter().map(|part| Some(key.key.slice_ref(part))).collect(),
        None => vec![None; count],
    };
    let of = |region, position, kind, metadata: Option<Json>, value: Option<Json>| {
        assemble(table, key.clone(), source, (region, position), kind, (metadata, value))
    };
    match fragment {
        Fragment::PartitionStart { tombstone, .. } => {
            of(Region::Start, None, "partition start", Some(json!({ "tombstone": deletion(*tombstone) })), None)
        }
        Fragment::Static(row) => {
            let (metadata, values) = columns(table, row);
            of(Region::Static, None, "static row", Some(metadata), Some(values))
        }
        Fragment::Row { key, row } => {
            let (metadata, values) = clustering_row(table, row);
            of(Region::Clustered, Some((key, 0)), "clustering row", Some(metadata), Some(values))
        }
        Fragment::Change { at, tombstone } => {
            let metadata = json!({ "tombstone": deletion(*tombstone) });
            let weight = if at.after { 1 } else { -1 };
            of(Region::Clustered, Some((&at.prefix, weight)), "range tombstone change", Some(metadata), None)
        }
        Fragment::PartitionEnd => of(Region::End, None, "partition end", None, None),
    }
}

fn assemble(
    table: &TableSchema,
    mut row: VirtualRow,
    source: &str,
    (region, position): (Region, Position<'_>),
    kind: &'static str,
    (metadata, value): (Option<Json>, Option<Json>),
) -> VirtualRow {
    let tinyint = |number: i8| Some(Bytes::copy_from_slice(&number.to_be_bytes()));
    let text = |text: String| Some(Bytes::from(text));
    row.extend([text(source.to_owned()), tinyint(region as i8)]);
    let mut components = position.map(|(prefix, _)| prefix.components());
    for _ in &table.clustering {
        let component = components.as_mut().and_then(Iterator::next);
        row.push(component.map(Bytes::copy_from_slice));
    }
    row.push(position.and_then(|(_, weight)| tinyint(weight)));
    row.push(metadata.and_then(|json| text(json.to_string())));
    row.push(Some(Bytes::from_static(kind.as_bytes())));
    row.push(value.and_then(|json| text(json.to_string())));
    row
}

/// A tombstone as JSON; `{}` if there is none.
fn deletion(tombstone: Tombstone) -> Json {
    if tombstone.is_live() {
        return json!({});
    }
    json!({ "timestamp": tombstone.timestamp, "deletion_time": moment(tombstone.deletion_time) })
}

/// Formats a time like `2023-06-30 11:00:48z`.
fn moment(seconds: Seconds) -> String {
    let text = temporal::format_timestamp(i64::from(seconds) * 1000, ' ');
    let whole = text.split('.').next().unwrap_or_default();
    format!("{whole}z")
}

fn clustering_row(table: &TableSchema, row: &Row) -> (Json, Json) {
    let (marker, tombstone, _) = row.parts();
    let (columns, values) = columns(table, row);
    let mut metadata = Map::new();
    if !tombstone.is_live() {
        metadata.insert("tombstone".to_owned(), deletion(tombstone));
    }
    if let Some(marker) = marker {
        let mut json = json!({ "timestamp": marker.timestamp });
        if marker.ttl == DEAD_MARKER_TTL {
            json["deletion_time"] = moment(marker.expiry).into();
        } else if marker.ttl != 0 {
            json["ttl"] = format!("{}s", marker.ttl).into();
            json["expiry"] = moment(marker.expiry).into();
        }
        metadata.insert("marker".to_owned(), json);
    }
    metadata.insert("columns".to_owned(), columns);
    (Json::Object(metadata), values)
}

/// The cells by column: their metadata and their values.
fn columns(table: &TableSchema, row: &Row) -> (Json, Json) {
    let (mut metadata, mut values) = (Map::new(), Map::new());
    let mut texts = Texts::default();
    for cell in row.cells() {
        let Some(column) = table.column(cell.column) else { continue };
        if !column.ty.is_multi_cell() {
            let (known, value) = simple_cell(column, &cell, &mut texts);
            metadata.insert(column.name.clone(), known);
            values.insert(column.name.clone(), value);
            continue;
        }
        let known = metadata.entry(&column.name).or_insert_with(|| json!({ "type": "collection", "cells": [] }));
        let listed = values.entry(&column.name).or_insert_with(|| json!([]));
        if let Some(tombstone) = cell.as_complex_deletion() {
            known["tombstone"] = deletion(tombstone);
            continue;
        }
        let (path, element) = element_types(&column.ty);
        let key = texts.of(&path, cell.path.unwrap_or_default());
        if let Some(cells) = known["cells"].as_array_mut() {
            cells.push(json!({ "key": key.clone(), "value": plain_cell("regular", &cell) }));
        }
        if let Some(list) = listed.as_array_mut() {
            let value = is_live(&cell).then(|| element.map_or_else(String::new, |ty| texts.of(&ty, cell.value)));
            list.push(json!({ "key": key, "value": value }));
        }
    }
    (Json::Object(metadata), Json::Object(values))
}

fn simple_cell(column: &Column, cell: &Cell<'_>, texts: &mut Texts) -> (Json, Json) {
    if column.ty.is_counter() && is_live(cell) {
        let shards = counter::shards(cell.value);
        let shards =
            shards.map(|shard| json!({ "id": shard.id.to_string(), "value": shard.count, "clock": shard.clock }));
        return (plain_cell("counter-shards", cell), shards.collect());
    }
    let kind = if column.ty.is_collection() { "frozen-collection" } else { "regular" };
    let value = if is_live(cell) { texts.of(&column.ty, cell.value).into() } else { Json::Null };
    (plain_cell(kind, cell), value)
}

fn is_live(cell: &Cell<'_>) -> bool {
    matches!(cell.state, State::Live | State::Expiring { .. })
}

fn plain_cell(kind: &str, cell: &Cell<'_>) -> Json {
    let mut json = json!({ "is_live": is_live(cell), "type": kind, "timestamp": cell.timestamp });
    match cell.state {
        State::Expiring { ttl, expiry } => {
            json["ttl"] = format!("{ttl}s").into();
            json["expiry"] = moment(expiry).into();
        }
        State::Dead { deletion_time } => json["deletion_time"] = moment(deletion_time).into(),
        State::Live | State::ComplexDeletion { .. } => {}
    }
    json
}

/// The types of paths and of values in a multi-cell column. A set has no values.
fn element_types(ty: &CqlType) -> (CqlType, Option<CqlType>) {
    match ty {
        CqlType::List { elem, .. } => (CqlType::Timeuuid, Some(CqlType::clone(elem))),
        CqlType::Set { elem, .. } => (CqlType::clone(elem), None),
        CqlType::Map { key, value, .. } => (CqlType::clone(key), Some(CqlType::clone(value))),
        // The path is the index of a field. The field's type is not looked up, so its value is
        // shown as a blob.
        _ => (CqlType::Smallint, Some(CqlType::Blob)),
    }
}

/// The most bytes of the text of a short value.
const SHORT_TEXT: usize = 64 << 10;

/// The texts of the values of a row. Together they are not longer than an answer can be.
struct Texts {
    /// How many bytes more they may have.
    left: usize,
}

impl Default for Texts {
    fn default() -> Self {
        Texts { left: MOST_BYTES }
    }
}

impl Texts {
    /// A value as text: strings without quotes, all others as JSON. Bytes that are no value of the
    /// type, or whose text would be too long, are shown in hexadecimal digits.
    fn of(&mut self, ty: &CqlType, bytes: &[u8]) -> String {
        let limit = self.left.min(shown_limit(bytes.len(), SHORT_TEXT));
        let mut text = String::new();
        let written = push_text(JsonNotation::SHOWN, ty, Some(bytes), limit, &mut text);
        self.left = self.left.saturating_sub(text.len());
        match written {
            Ok(()) => serde_json::from_str::<String>(&text).unwrap_or(text),
            Err(_) => format!("0x{}", hex(bytes)),
        }
    }
}

/// Converts the rows of a virtual table to fragments. They have no timestamps.
pub(super) fn virtual_rows(table: &TableSchema, rows: Vec<VirtualRow>) -> Vec<VirtualRow> {
    let (keys, clusterings) = (table.partition_key.len(), table.clustering.len());
    let mut partitions: BTreeMap<Vec<u8>, Vec<VirtualRow>> = BTreeMap::new();
    for row in rows {
        let components: Vec<&[u8]> = row.iter().take(keys).map(|value| value.as_deref().unwrap_or_default()).collect();
        let mut key = Vec::new();
        encode_partition_key(&components, &mut key);
        partitions.entry(key).or_default().push(row);
    }
    let others = |row: &VirtualRow| -> Json {
        let columns = table.all_columns().zip(row).skip(keys + clusterings);
        let regular = columns.filter(|(column, _)| column.kind == ColumnKind::Regular);
        let mut texts = Texts::default();
        let show = |(column, value): (&Column, &Option<Bytes>)| {
            value.as_ref().map(|value| (column.name.clone(), texts.of(&column.ty, value).into()))
        };
        Json::Object(regular.filter_map(show).collect())
    };
    let mut out = Vec::new();
    for rows in partitions.into_values() {
        let key = rows[0][..keys].to_vec();
        let mut add = |region, position: Position<'_>, kind, metadata, value| {
            out.push(assemble(table, key.clone(), VIRTUAL_SOURCE, (region, position), kind, (metadata, value)));
        };
        add(Region::Start, None, "partition start", Some(json!({ "tombstone": {} })), None);
        let mut rows: Vec<(Clustering, Json)> = rows
            .iter()
            .map(|row| {
                let components = row[keys..keys + clusterings].iter().map(|value| value.as_deref().unwrap_or_default());
                (Clustering::from_components(components), others(row))
            })
            .collect();
        rows.sort_by(|a, b| table.order.compare_rows(&a.0, &b.0));
        for (clustering, values) in rows {
            add(
                Region::Clustered,
                Some((&clustering, 0)),
                "clustering row",
                Some(json!({ "columns": {} })),
                Some(values),
            );
        }
        add(Region::End, None, "partition end", None, None);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::types::UserType;
    use model::types::collection::build_list;

    #[test]
    fn the_texts_of_a_row_are_bounded() {
        let fields = (0..4_000).map(|n| (format!("f{n}"), CqlType::Int)).collect();
        let wide = CqlType::udt(UserType { keyspace: "ks".into(), name: "wide".into(), fields, frozen: true });
        let nothing = [0xff; 4];
        let mut texts = Texts::default();
        assert!(texts.of(&wide, &nothing).starts_with(r#"{"f0": null, "f1": null, "#));
        assert_eq!(texts.of(&CqlType::list(wide.clone()), &build_list(vec![nothing; 2])).len(), 2 + 2 * 20);
        let cells: Vec<String> = (0..10_000).map(|_| texts.of(&wide, &nothing)).collect();
        let bytes: usize = cells.iter().map(String::len).sum();
        assert!(bytes < MOST_BYTES + 10_000 * 10, "{bytes} bytes");
        assert_eq!(cells.last().map(String::as_str), Some("0xffffffff"));
    }

    #[test]
    fn values_are_shown_as_json_or_text() {
        let mut texts = Texts::default();
        for (ty, bytes, text) in [
            (CqlType::Text, &b"it's"[..], "it's"),
            (CqlType::Int, &[0, 0, 0, 7], "7"),
            (CqlType::list(CqlType::Text), b"\0\0\0\x01\0\0\0\x01a", "[\"a\"]"),
            (CqlType::Int, &[7], "0x07"),
        ] {
            assert_eq!(texts.of(&ty, bytes), text);
        }
    }
}
