//! Laws of merging and compaction, over random rows and streams.

use bytes::Bytes;
use model::compact::{Compactor, Rules};
use model::fragment::Fragment;
use model::id::{ColumnId, SchemaVersion, TableId};
use model::key::{Clustering, ClusteringCut, DecoratedKey};
use model::merge::merge_all;
use model::mutation::MutationBuilder;
use model::options::TableOptions;
use model::row::{self, Cell, Marker, Row};
use model::schema::{Column, ColumnKind, TableSchema};
use model::time::Tombstone;
use model::types::CqlType;
use proptest::prelude::*;
use std::rc::Rc;

fn column(id: u16, name: &str, kind: ColumnKind, ty: CqlType) -> Column {
    Column { id: ColumnId(id), name: name.into(), kind, position: 0, ty, descending: false }
}

fn schema() -> Rc<TableSchema> {
    schema_of(CqlType::Tinyint)
}

/// The schema with maps of these keys.
fn schema_of(map_key: CqlType) -> Rc<TableSchema> {
    Rc::new(TableSchema::new(
        TableId::from_bytes([1; 16]),
        SchemaVersion::from_bytes([2; 16]),
        "ks",
        "t",
        vec![column(0, "pk", ColumnKind::PartitionKey, CqlType::Text)],
        vec![column(0, "ck", ColumnKind::Clustering, CqlType::Tinyint)],
        vec![],
        vec![
            column(0, "a", ColumnKind::Regular, CqlType::Blob),
            column(1, "m", ColumnKind::Regular, CqlType::map(map_key, CqlType::Blob)),
        ],
        vec![],
        TableOptions::default(),
    ))
}

/// The TTL and the expiry of a write at `timestamp`.
///
/// Each timestamp has one expiry. Of two writes with one timestamp, the one that expires later
/// wins. But after compaction an expired write is a tombstone, and wins against both: as in
/// Cassandra (CASSANDRA-14592) and ScyllaDB.
fn expiry_of(timestamp: i64) -> (i32, i32) {
    let later = timestamp as i32 % 4;
    (later + 1, later + 11)
}

fn any_row() -> impl Strategy<Value = Row> {
    let cell = (0u8..4, -2i8..3, 0i64..6, 0u8..3, 0i32..4);
    let marker = proptest::option::of((0i64..6, any::<bool>()));
    (marker, proptest::option::of((0i64..6, 0i32..4)), proptest::collection::vec(cell, 0..6)).prop_map(
        |(marker, deletion, cells)| {
            let marker = marker.map(|(timestamp, expires)| match expires {
                false => Marker::new(timestamp),
                true => {
                    let (ttl, expiry) = expiry_of(timestamp);
                    Marker::expiring(timestamp, ttl, expiry)
                }
            });
            let deletion = deletion.map_or(Tombstone::LIVE, |(timestamp, at)| Tombstone::new(timestamp, at));
            let paths: Vec<[u8; 1]> = cells.iter().map(|cell| [cell.1 as u8]).collect();
            let values: Vec<[u8; 1]> = cells.iter().map(|cell| [cell.3]).collect();
            let cells: Vec<Cell<'_>> = cells
                .iter()
                .enumerate()
                .map(|(i, &(kind, _, timestamp, value, time))| match kind {
                    0 => Cell::live(ColumnId(0), timestamp, &values[i]),
                    1 => Cell::dead(ColumnId(0), timestamp, time),
                    2 => Cell::complex_deletion(ColumnId(1), Tombstone::new(timestamp, time)),
                    _ if value == 0 => Cell::dead(ColumnId(1), timestamp, time).at(&paths[i]),
                    _ if value == 1 => {
                        let (ttl, expiry) = expiry_of(timestamp);
                        Cell::live(ColumnId(1), timestamp, &values[i]).with_ttl(ttl, expiry).at(&paths[i])
                    }
                    _ => Cell::live(ColumnId(1), timestamp, &values[i]).at(&paths[i]),
                })
                .collect();
            let built = row::build(&schema(), marker, deletion, cells);
            // Normalises the row: drops what its own tombstones cover.
            row::merge(&schema(), &built, &built)
        },
    )
}

fn any_stream() -> impl Strategy<Value = Vec<Fragment>> {
    let change = (-3i8..4, any::<bool>(), proptest::option::of(0i64..6));
    let rows = proptest::collection::btree_map(-3i8..4, any_row(), 0..5);
    let partition = (0u8..4, proptest::option::of(0i64..6), rows, proptest::collection::vec(change, 0..4));
    proptest::collection::vec(partition, 0..4).prop_map(|partitions| {
        let schema = schema();
        let mut seen = std::collections::BTreeMap::new();
        for (name, tombstone, rows, changes) in partitions {
            let key = DecoratedKey::new(Bytes::copy_from_slice(&[name]));
            let mut body: Vec<Fragment> = rows
                .into_iter()
                .filter(|(_, row)| !row.is_empty())
                .map(|(ck, row)| Fragment::Row { key: Clustering::from_components([&[ck as u8][..]]), row })
                .collect();
            body.extend(changes.into_iter().map(|(ck, after, tombstone)| Fragment::Change {
                at: ClusteringCut { prefix: Clustering::from_components([&[ck as u8][..]]), after },
                tombstone: tombstone.map_or(Tombstone::LIVE, |timestamp| Tombstone::new(timestamp, 1)),
            }));
            body.sort_by(|a, b| schema.order.compare(a.position().unwrap(), b.position().unwrap()));
            body.dedup_by(|a, b| schema.order.compare(a.position().unwrap(), b.position().unwrap()).is_eq());
            let mut open = Tombstone::LIVE;
            body.retain(|fragment| match fragment {
                Fragment::Change { tombstone, .. } => std::mem::replace(&mut open, *tombstone) != *tombstone,
                _ => true,
            });
            if !open.is_live() {
                body.push(Fragment::Change { at: ClusteringCut::END, tombstone: Tombstone::LIVE });
            }
            seen.insert(key, (tombstone.map_or(Tombstone::LIVE, |timestamp| Tombstone::new(timestamp, 1)), body));
        }
        let mut out = Vec::new();
        for (key, (tombstone, body)) in seen {
            out.push(Fragment::PartitionStart { key, tombstone });
            out.extend(body);
            out.push(Fragment::PartitionEnd);
        }
        out
    })
}

fn merged(streams: Vec<Vec<Fragment>>) -> Vec<Fragment> {
    let schema = schema();
    merge_all(&schema, &schema.order, streams)
}

fn compacted(stream: Vec<Fragment>, now: i32, gc_before: i32, max_purgeable: i64) -> Vec<Fragment> {
    let mut compactor = Compactor::new(Rules { now, gc_before });
    let mut out = Vec::new();
    for fragment in stream {
        compactor.push(fragment, |_| max_purgeable, |fragment| out.push(fragment));
    }
    out
}

/// What a reader at `now` sees: key, clustering key, marker, live cells.
fn visible(stream: &[Fragment], now: i32) -> Vec<String> {
    let mut cover = model::compact::Cover::default();
    let mut partition = None;
    let mut out = Vec::new();
    for fragment in stream {
        match fragment {
            Fragment::PartitionStart { key, tombstone } => {
                cover.start(*tombstone);
                partition = Some(key.clone());
            }
            Fragment::Change { tombstone, .. } => cover.change(*tombstone),
            Fragment::Row { key, row } if model::compact::is_live(row, cover.row(), now) => {
                let marker = model::compact::live_marker(row, cover.row(), now);
                let cells: Vec<_> = model::compact::live_cells(row, cover.row(), now).collect();
                out.push(format!("{partition:?} {key:?} {marker:?} {cells:?}"));
            }
            _ => {}
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2 * ProptestConfig::default().cases))]

    #[test]
    fn rows_merge_commutatively(a in any_row(), b in any_row()) {
        prop_assert_eq!(row::merge(&schema(), &a, &b), row::merge(&schema(), &b, &a));
    }

    #[test]
    fn rows_merge_associatively(a in any_row(), b in any_row(), c in any_row()) {
        let schema = schema();
        let left = row::merge(&schema, &row::merge(&schema, &a, &b), &c);
        let right = row::merge(&schema, &a, &row::merge(&schema, &b, &c));
        prop_assert_eq!(left, right);
    }

    #[test]
    fn rows_merged_together_are_as_merged_one_by_one(rows in proptest::collection::vec(any_row(), 0..12)) {
        let schema = schema();
        let folded = rows.iter().cloned().reduce(|kept, row| row::merge(&schema, &kept, &row));
        prop_assert_eq!(row::merge_all(&schema, rows), folded);
    }

    #[test]
    fn rows_merged_in_parts_are_as_merged_at_once(a in any_row(), b in any_row(), bytes in 1usize..200) {
        let mut merging = row::Merging::new(a.clone(), b.clone());
        while !merging.run(&schema(), bytes) {}
        prop_assert_eq!(merging.finish(), row::merge(&schema(), &a, &b));
    }

    #[test]
    fn rows_merge_idempotently(a in any_row(), b in any_row()) {
        let once = row::merge(&schema(), &a, &b);
        prop_assert_eq!(row::merge(&schema(), &once, &b), once.clone());
        prop_assert_eq!(row::merge(&schema(), &once, &once), once);
    }

    #[test]
    fn rows_check(a in any_row()) {
        prop_assert!(Row::check(&a.0).is_ok());
    }

    #[test]
    fn streams_merge_in_any_grouping(a in any_stream(), b in any_stream(), c in any_stream()) {
        let all = merged(vec![a.clone(), b.clone(), c.clone()]);
        prop_assert_eq!(&merged(vec![merged(vec![a.clone(), b.clone()]), c.clone()]), &all);
        prop_assert_eq!(&merged(vec![c, b, a]), &all);
    }

    #[test]
    fn compaction_is_invisible(a in any_stream(), b in any_stream(), now in 8i32..16) {
        let all = merged(vec![a.clone(), b.clone()]);
        let seen = visible(&all, now);
        // With purging of everything, because this is all the data.
        prop_assert_eq!(visible(&compacted(all.clone(), now, i32::MAX, i64::MAX), now), seen.clone());
        // Without purging, compacting before merging gives the same.
        let keep = |stream| compacted(stream, now, i32::MIN, i64::MIN);
        prop_assert_eq!(visible(&merged(vec![keep(a), keep(b)]), now), seen.clone());
        prop_assert_eq!(visible(&keep(keep(all)), now), seen);
    }
}

/// One partition with one row of a marker and a cell.
fn single(marker: Marker, cell: Cell<'_>) -> Vec<Fragment> {
    let row = row::build(&schema(), Some(marker), Tombstone::LIVE, vec![cell]);
    vec![
        Fragment::PartitionStart { key: DecoratedKey::new(Bytes::from_static(b"k")), tombstone: Tombstone::LIVE },
        Fragment::Row { key: Clustering::from_components([&[1u8][..]]), row },
        Fragment::PartitionEnd,
    ]
}

/// A reader that began in the second before a row expired reads what a compaction has made of the
/// row since.
#[test]
fn cells_that_expire_together_are_compacted_together_also_for_earlier_readers() {
    let cell = Cell::live(ColumnId(0), 1, b"v").with_ttl(3, 11);
    let rows = single(Marker::expiring(1, 3, 11), cell);
    assert_eq!(visible(&rows, 10).len(), 1);
    assert_eq!(visible(&compacted(rows.clone(), 10, i32::MIN, i64::MIN), 10), visible(&rows, 10));
    assert!(visible(&compacted(rows, 11, i32::MIN, i64::MIN), 10).is_empty(), "a row without its value");
}

/// Dead markers come from views of other databases and from compaction.
#[test]
fn a_dead_marker_stays_until_it_is_old_enough() {
    for marker in [Marker::expiring(1, model::time::DEAD_MARKER_TTL, 8), Marker::expiring(1, 3, 11)] {
        let rows = single(marker, Cell::dead(ColumnId(0), 1, 8));
        let kept = |gc_before| {
            compacted(rows.clone(), 12, gc_before, i64::MAX).iter().any(|f| matches!(f, Fragment::Row { .. }))
        };
        assert!(kept(8) && !kept(9), "{marker:?}");
        let Some(Fragment::Row { row, .. }) = compacted(rows, 12, 8, i64::MAX).into_iter().nth(1) else {
            panic!("no row")
        };
        assert_eq!(row.parts().0, Some(Marker::expiring(1, model::time::DEAD_MARKER_TTL, 8)));
    }
}

/// A batch may write each element of a collection in a statement of its own.
#[test]
#[allow(clippy::disallowed_methods, reason = "model does not depend on rt")]
fn many_changes_of_one_row_are_merged_in_time() {
    const CHANGES: i32 = 20_000;
    let schema = schema_of(CqlType::Int);
    let mut together = MutationBuilder::new(schema.id, schema.version, b"key");
    let mut fixed = MutationBuilder::new(schema.id, schema.version, b"key");
    let key = Clustering::from_components([&[1][..]]);
    for i in 0..CHANGES {
        let path = (i.wrapping_mul(7919) % CHANGES).to_be_bytes();
        let cell = Cell::live(ColumnId(1), 5, b"x").at(&path);
        let row = row::build(&schema, None, Tombstone::LIVE, vec![cell]);
        together.row(key.clone(), row.clone());
        fixed.static_row(row);
    }
    let begun = std::time::Instant::now();
    let rows: Vec<(Clustering, Row)> = together.finish(&schema).parts().rows.collect();
    let static_row = fixed.finish(&schema).parts().static_row.expect("a static row");
    // Merged one after the other, this takes minutes.
    assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{:?}", begun.elapsed());
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].0, key);
    assert_eq!(rows[0].1.parts().2.count(), CHANGES as usize);
    assert_eq!(static_row, rows[0].1);
}

/// Such bytes of another node would be merged into a row that cannot be read.
#[test]
fn a_complex_deletion_with_a_path_is_refused() {
    let deleted = Cell::complex_deletion(ColumnId(1), Tombstone::new(5, 6));
    let row = row::build(&schema(), None, Tombstone::LIVE, vec![deleted]);
    assert!(Row::check(&row.0).is_ok());
    let mut bytes = row.0.to_vec();
    // The flags of the cell follow those of the row and the id of the column.
    bytes[3] |= 4;
    bytes.extend_from_slice(&1u32.to_le_bytes());
    bytes.push(b'p');
    assert!(Row::check(&bytes).is_err());
}
