//! Random tables and streams of fragments, by seed, for tests and for files that other tools check.

#![allow(dead_code, reason = "each program uses its part")]

use bytes::Bytes;
use model::fragment::Fragment;
use model::key::{Clustering, ClusteringCut, DecoratedKey, encode_partition_key};
use model::row::{self, Cell, Marker, Row, State};
use model::schema::ClusteringOrder;
use model::time::{DEAD_MARKER_TTL, Tombstone};
use model::types::{CqlType, UserType};
use model::{Column, ColumnId, ColumnKind, SchemaVersion, TableId, TableSchema};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::cmp::Ordering;
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

/// The size of a random table.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub partitions: usize,
    pub rows: usize,
    pub value: usize,
}

pub fn rng(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

fn scalar(rng: &mut StdRng) -> CqlType {
    [
        CqlType::Int,
        CqlType::Text,
        CqlType::Bigint,
        CqlType::Blob,
        CqlType::Boolean,
        CqlType::Tinyint,
        CqlType::Date,
        CqlType::Uuid,
        CqlType::Varint,
        CqlType::Ascii,
        CqlType::Decimal,
        CqlType::Double,
        CqlType::Float,
        CqlType::Inet,
        CqlType::Smallint,
        CqlType::Time,
        CqlType::Timestamp,
        CqlType::Timeuuid,
    ]
    .choose(rng)
    .expect("not empty")
    .clone()
}

fn user_type(frozen: bool) -> CqlType {
    CqlType::udt(UserType {
        keyspace: "ks".into(),
        name: "person".into(),
        fields: vec![("name".into(), CqlType::Text), ("age".into(), CqlType::Int), ("mail".into(), CqlType::Text)]
            .into(),
        frozen,
    })
}

fn column_type(rng: &mut StdRng) -> CqlType {
    match rng.gen_range(0..10) {
        0 => CqlType::list(CqlType::Text),
        1 => CqlType::set(CqlType::Int),
        2 => CqlType::map(CqlType::Text, CqlType::Int),
        3 => user_type(false),
        4 => CqlType::List { elem: Arc::new(CqlType::Int), frozen: true },
        5 => match rng.gen_range(0..3) {
            0 => CqlType::Duration,
            1 => CqlType::Tuple([CqlType::Int, CqlType::Text].into()),
            _ => user_type(true),
        },
        _ => scalar(rng),
    }
}

/// A table with up to `columns` regular columns.
pub fn schema(rng: &mut StdRng, columns: usize) -> Rc<TableSchema> {
    let column = |id: usize, name: String, kind, ty: CqlType, descending| Column {
        id: ColumnId(id as u16),
        name,
        kind,
        position: 0,
        ty,
        descending,
    };
    let keys = (0..rng.gen_range(1..3))
        .map(|i| column(i, format!("p{i}"), ColumnKind::PartitionKey, scalar(rng), false))
        .collect::<Vec<_>>();
    // With more than 32, the prefix has a second header.
    let clustering = (0..if rng.gen_bool(0.05) { 36 } else { rng.gen_range(0..4) })
        .map(|i| {
            let (ty, descending) = (scalar(rng), rng.gen_bool(0.3));
            column(i, format!("c{i}"), ColumnKind::Clustering, ty, descending)
        })
        .collect::<Vec<_>>();
    let statics = if clustering.is_empty() { 0 } else { rng.gen_range(0..3) };
    let regulars = rng.gen_range(0..=columns);
    let counters = rng.gen_bool(0.07);
    let mut ids: Vec<usize> = (0..statics + regulars).collect();
    if rng.gen_bool(0.5) {
        ids.shuffle(rng);
    }
    let cells = |first: usize, count: usize, kind, rng: &mut StdRng| {
        (0..count)
            .map(|i| {
                let ty = if counters { CqlType::Counter } else { column_type(rng) };
                column(ids[first + i], format!("{}{i}", ["s", "r"][(first > 0) as usize]), kind, ty, false)
            })
            .collect::<Vec<_>>()
    };
    let statics_made = cells(0, statics, ColumnKind::Static, rng);
    let mut regulars_made = cells(statics, regulars, ColumnKind::Regular, rng);
    for (i, column) in regulars_made.iter_mut().enumerate() {
        column.name = format!("r{i}");
    }
    Rc::new(TableSchema::new(
        TableId(Uuid::from_u128(1)),
        SchemaVersion(Uuid::from_u128(2)),
        "ks",
        "tbl",
        keys,
        clustering,
        statics_made,
        regulars_made,
        Vec::new(),
        Default::default(),
    ))
}

fn text(rng: &mut StdRng, max: usize) -> Vec<u8> {
    let len = rng.gen_range(0..=max);
    (0..len).map(|_| rng.gen_range(b'a'..=b'z')).collect()
}

/// A value of a single-cell type.
pub fn value(rng: &mut StdRng, ty: &CqlType, max: usize) -> Vec<u8> {
    match ty {
        CqlType::Int | CqlType::Date => rng.gen_range(0..50i32).to_be_bytes().to_vec(),
        CqlType::Bigint => rng.gen_range(-20..20i64).to_be_bytes().to_vec(),
        CqlType::Boolean => vec![rng.gen_range(0..2)],
        CqlType::Tinyint => vec![rng.r#gen()],
        CqlType::Uuid => Uuid::from_u128(rng.gen_range(0..1000) | 4 << 76 | 2 << 62).as_bytes().to_vec(),
        CqlType::Varint => match rng.gen_range(0..2) {
            0 => vec![rng.r#gen()],
            _ => rng.gen_range(i16::MAX..=i16::MAX).to_be_bytes().to_vec(),
        },
        CqlType::Smallint => rng.gen_range(-500..500i16).to_be_bytes().to_vec(),
        CqlType::Time => rng.gen_range(0..86_400_000_000_000i64).to_be_bytes().to_vec(),
        CqlType::Timestamp => rng.gen_range(-(1i64 << 41)..1 << 41).to_be_bytes().to_vec(),
        CqlType::Double => rng.gen_range(-1e3..1e3f64).to_be_bytes().to_vec(),
        CqlType::Float => (rng.gen_range(-1000..1000i32) as f32 / 8.0).to_be_bytes().to_vec(),
        CqlType::Decimal => {
            let mut out = rng.gen_range(0..6i32).to_be_bytes().to_vec();
            out.push(rng.gen_range(1..100));
            out
        }
        CqlType::Duration => vec![rng.gen_range(0..40) * 2, rng.gen_range(0..40) * 2, rng.gen_range(0..60) * 2],
        CqlType::Inet => {
            let bytes: [u8; 16] = rng.r#gen();
            bytes[..if rng.gen_bool(0.5) { 4 } else { 16 }].to_vec()
        }
        CqlType::Timeuuid => time_uuid(rng).to_vec(),
        CqlType::Tuple(_) => {
            let mut out = 4i32.to_be_bytes().to_vec();
            out.extend_from_slice(&rng.gen_range(0..9i32).to_be_bytes());
            // Cassandra's printer needs the last field, too.
            if rng.gen_bool(0.5) {
                out.extend_from_slice(&(-1i32).to_be_bytes());
            } else {
                out.extend_from_slice(b"\0\0\0\x03a:@");
            }
            out
        }
        CqlType::Udt(_) => {
            let mut out = b"\0\0\0\x03ann".to_vec();
            if rng.gen_bool(0.5) {
                out.extend_from_slice(b"\0\0\0\x04\0\0\0\x07\xff\xff\xff\xff");
            }
            out
        }
        CqlType::Counter => {
            let shards = rng.gen_range(1..4u16);
            let mut out = shards.to_be_bytes().to_vec();
            (0..shards).for_each(|i| out.extend_from_slice(&(0x8000 + i).to_be_bytes()));
            for i in 0..shards {
                out.extend_from_slice(Uuid::from_u128(1 + u128::from(i) * 7).as_bytes());
                out.extend_from_slice(&rng.gen_range(1..1000i64).to_be_bytes());
                out.extend_from_slice(&rng.gen_range(-1000..1000i64).to_be_bytes());
            }
            out
        }
        CqlType::Blob => (0..rng.gen_range(0..=max)).map(|_| rng.r#gen()).collect(),
        CqlType::List { .. } => {
            let mut out = 2u32.to_be_bytes().to_vec();
            for _ in 0..2 {
                out.extend_from_slice(&4u32.to_be_bytes());
                out.extend_from_slice(&rng.gen_range(0..9i32).to_be_bytes());
            }
            out
        }
        _ => text(rng, max),
    }
}

fn key_value(rng: &mut StdRng, ty: &CqlType) -> Vec<u8> {
    loop {
        let bytes = value(rng, ty, 3);
        if !bytes.is_empty() || matches!(ty, CqlType::Text | CqlType::Ascii | CqlType::Blob) {
            return bytes;
        }
    }
}

const NOW: i32 = 1_700_000_000;

pub fn tombstone(rng: &mut StdRng) -> Tombstone {
    Tombstone::new(rng.gen_range(900..1500), NOW + rng.gen_range(0..100_000))
}

fn time_uuid(rng: &mut StdRng) -> [u8; 16] {
    let mut bytes: [u8; 16] = rng.r#gen();
    bytes[6] = bytes[6] & 0x0f | 0x10;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

fn path(rng: &mut StdRng, ty: &CqlType) -> Vec<u8> {
    match ty {
        CqlType::List { .. } => time_uuid(rng).to_vec(),
        CqlType::Set { elem, .. } => value(rng, elem, 5),
        CqlType::Map { key, .. } => value(rng, key, 5),
        _ => rng.gen_range(0..3u16).to_be_bytes().to_vec(),
    }
}

fn element(rng: &mut StdRng, ty: &CqlType, path: &[u8], max: usize) -> Vec<u8> {
    match ty {
        CqlType::List { elem, .. } => value(rng, elem, max),
        CqlType::Set { .. } => Vec::new(),
        CqlType::Map { value: ty, .. } => value(rng, ty, max),
        _ if path == [0, 1] => value(rng, &CqlType::Int, max),
        _ => text(rng, max),
    }
}

struct Owned {
    column: ColumnId,
    path: Option<Vec<u8>>,
    timestamp: i64,
    state: State,
    value: Vec<u8>,
}

pub fn row(rng: &mut StdRng, schema: &TableSchema, columns: &[Column], fixed: bool, max: usize) -> Row {
    // Some are far from the others, so that differences have all lengths.
    let timestamp = match rng.gen_range(0..100) {
        0 => 1 << rng.gen_range(11..62),
        1 => -(1 << rng.gen_range(0..62)),
        _ => rng.gen_range(1000..2000),
    };
    let counters = columns.iter().any(|column| column.ty == CqlType::Counter);
    let marker = match rng.gen_range(0..10) {
        _ if fixed || counters => None,
        0..=5 => Some(Marker::new(timestamp)),
        6 => Some(Marker::expiring(timestamp, 100, NOW + 100)),
        7 => Some(Marker::expiring(timestamp, DEAD_MARKER_TTL, NOW + 5)),
        _ => None,
    };
    let deletion = if !fixed && rng.gen_bool(0.1) { tombstone(rng) } else { Tombstone::LIVE };
    let density = *[0.1, 0.5, 1.0].choose(rng).expect("not empty");
    let mut cells = Vec::new();
    for column in columns {
        if !rng.gen_bool(density) {
            continue;
        }
        let state = |rng: &mut StdRng| match rng.gen_range(0..10) {
            1 | 2 if counters => State::Live,
            0 => State::Dead { deletion_time: NOW + rng.gen_range(0..1000) },
            1 => State::Expiring { ttl: 100, expiry: NOW + 100 },
            2 => State::Expiring { ttl: 7, expiry: NOW + 7 },
            _ => State::Live,
        };
        let when = |rng: &mut StdRng| if rng.gen_bool(0.7) { timestamp } else { rng.gen_range(1000..3000) };
        if !column.ty.is_multi_cell() {
            let (state, timestamp) = (state(rng), when(rng));
            let dead = matches!(state, State::Dead { .. });
            // Old clients may write empty numbers.
            let empty = dead || (column.ty == CqlType::Int && rng.gen_bool(0.05));
            let value = if empty { Vec::new() } else { value(rng, &column.ty, max) };
            cells.push(Owned { column: column.id, path: None, timestamp, state, value });
            continue;
        }
        if rng.gen_bool(0.4) {
            let state = State::ComplexDeletion { deletion_time: NOW };
            cells.push(Owned { column: column.id, path: None, timestamp: timestamp - 1, state, value: Vec::new() });
        }
        for _ in 0..rng.gen_range(0..4) {
            let (state, timestamp) = (state(rng), when(rng));
            let path = path(rng, &column.ty);
            let dead = matches!(state, State::Dead { .. });
            let value = if dead { Vec::new() } else { element(rng, &column.ty, &path, max) };
            cells.push(Owned { column: column.id, path: Some(path), timestamp, state, value });
        }
    }
    let cells = cells
        .iter()
        .map(|c| Cell {
            column: c.column,
            path: c.path.as_deref(),
            timestamp: c.timestamp,
            state: c.state,
            value: &c.value,
        })
        .collect();
    let row = row::build(schema, marker, deletion, cells);
    // Drops what the row's own tombstones cover.
    row::merge(schema, &row, &row)
}

fn prefix(rng: &mut StdRng, schema: &TableSchema, components: usize) -> Clustering {
    let values: Vec<_> = schema.clustering[..components].iter().map(|c| key_value(rng, &c.ty)).collect();
    Clustering::from_components(values.iter().map(|v| &v[..]))
}

/// A cut between rows, mostly near some of them.
pub fn cut(rng: &mut StdRng, schema: &TableSchema, near: &[Clustering]) -> ClusteringCut {
    let count = rng.gen_range(0..=schema.clustering.len());
    let prefix = match near.choose(rng) {
        Some(row) if rng.gen_bool(0.6) => Clustering::from_components(row.components().take(count)),
        _ => prefix(rng, schema, count),
    };
    ClusteringCut { prefix, after: rng.gen_bool(0.5) }
}

/// Distinct cuts in order.
pub fn cuts(rng: &mut StdRng, schema: &TableSchema, near: &[Clustering], count: usize) -> Vec<ClusteringCut> {
    let mut cuts: Vec<_> = (0..count).map(|_| cut(rng, schema, near)).collect();
    cuts.sort_by(|a, b| a.cmp(&schema.order, b));
    cuts.dedup_by(|a, b| a.cmp(&schema.order, b).is_eq());
    cuts
}

fn partition(rng: &mut StdRng, schema: &TableSchema, key: DecoratedKey, size: Size, out: &mut Vec<Fragment>) {
    let deletion = if rng.gen_bool(0.2) { tombstone(rng) } else { Tombstone::LIVE };
    out.push(Fragment::PartitionStart { key, tombstone: deletion });
    if !schema.statics.is_empty() && rng.gen_bool(0.7) {
        let row = row(rng, schema, &schema.statics, true, size.value);
        if !row.is_empty() {
            out.push(Fragment::Static(row));
        }
    }
    let mut keys: Vec<_> = match schema.clustering.len() {
        0 => vec![Clustering::EMPTY],
        n => (0..rng.gen_range(0..=size.rows)).map(|_| prefix(rng, schema, n)).collect(),
    };
    keys.sort_by(|a, b| schema.order.compare_rows(a, b));
    keys.dedup_by(|a, b| schema.order.compare_rows(a, b).is_eq());
    let mut rows = Vec::new();
    for key in &keys {
        let row = row(rng, schema, &schema.regulars, false, size.value);
        if !row.is_empty() {
            rows.push(Fragment::Row { key: key.clone(), row });
        }
    }
    let mut changes = Vec::new();
    if !schema.clustering.is_empty() && rng.gen_bool(0.6) {
        let count = rng.gen_range(2..2 + size.rows / 2 + 1);
        let cuts = cuts(rng, schema, &keys, count);
        let mut open = Tombstone::LIVE;
        let last = cuts.len() - 1;
        for (i, at) in cuts.into_iter().enumerate() {
            let next = if i == last || rng.gen_bool(0.4) { Tombstone::LIVE } else { tombstone(rng) };
            if next != open {
                changes.push(Fragment::Change { at, tombstone: next });
                open = next;
            }
        }
    }
    let (mut rows, mut changes) = (rows.into_iter().peekable(), changes.into_iter().peekable());
    loop {
        let order = match (rows.peek().and_then(Fragment::position), changes.peek().and_then(Fragment::position)) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(a), Some(b)) => schema.order.compare(a, b),
        };
        out.extend(if order == Ordering::Less { rows.next() } else { changes.next() });
    }
    out.push(Fragment::PartitionEnd);
}

/// A stream of partitions in order.
pub fn stream(rng: &mut StdRng, schema: &TableSchema, size: Size) -> Vec<Fragment> {
    let mut keys: Vec<_> = (0..size.partitions.max(1))
        .map(|_| {
            let values: Vec<_> = schema
                .partition_key
                .iter()
                .map(|c| {
                    loop {
                        let value = match c.ty {
                            CqlType::Int => rng.r#gen::<i32>().to_be_bytes().to_vec(),
                            _ => value(rng, &c.ty, 12),
                        };
                        if !value.is_empty() {
                            break value;
                        }
                    }
                })
                .collect();
            let mut out = Vec::new();
            encode_partition_key(&values.iter().map(|v| &v[..]).collect::<Vec<_>>(), &mut out);
            DecoratedKey::new(Bytes::from(out))
        })
        .collect();
    keys.sort();
    keys.dedup();
    let mut out = Vec::new();
    for key in keys {
        partition(rng, schema, key, size, &mut out);
    }
    out
}

/// The fragments of a stream, partition by partition.
pub fn partitions(stream: &[Fragment]) -> Vec<Vec<Fragment>> {
    let mut out = Vec::new();
    for fragment in stream {
        if matches!(fragment, Fragment::PartitionStart { .. }) {
            out.push(Vec::new());
        }
        out.last_mut().expect("a stream begins with a start").push(fragment.clone());
    }
    out
}

pub fn order(schema: &TableSchema) -> ClusteringOrder {
    schema.order.clone()
}
