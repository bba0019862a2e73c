//! Pages: where they end, what they count, what they refuse.

use super::*;
use crate::output::OutputColumn;
use crate::reduce::Reduction;
use model::aggregate::AggregateKind;
use model::id::{ColumnId, SchemaVersion, TableId};
use model::options::TableOptions;
use model::row::{Cell, Marker, RowBuilder};
use model::schema::{Column, ColumnKind, DroppedColumn};
use model::types::CqlType;

/// `t (pk int PRIMARY KEY, v int)` after column 1 was dropped.
fn schema() -> TableSchema {
    let column = |id, name: &str, kind| Column {
        id: ColumnId(id),
        name: name.into(),
        kind,
        position: 0,
        ty: CqlType::Int,
        descending: false,
    };
    let dropped =
        DroppedColumn { id: ColumnId(1), name: "x".into(), kind: ColumnKind::Regular, ty: CqlType::Int, drop_time: 10 };
    TableSchema::new(
        TableId::from_bytes([1; 16]),
        SchemaVersion::from_bytes([2; 16]),
        "ks",
        "t",
        vec![column(0, "pk", ColumnKind::PartitionKey)],
        Vec::new(),
        Vec::new(),
        vec![column(0, "v", ColumnKind::Regular)],
        vec![dropped],
        TableOptions::default(),
    )
}

/// Partitions that have only a tombstone also fill a page. After the last one, a live row postpones
/// the end of the page.
#[test]
fn tombstones_of_partitions_end_a_page() {
    let schema = schema();
    let output = Output::new(vec![OutputColumn::Value(ColumnId(0))], false, false);
    let limits =
        Limits { rows: 10, per_partition: 10, bytes: 1 << 20, tombstones: 3, unpaged_bytes: 1 << 20, paged: true };
    let mut builder = PageBuilder::new(&schema, &output, limits, 1);
    let dead = Tombstone { timestamp: 9, deletion_time: 0 };
    let mut partition = |n: u8, tombstone: Tombstone, row: bool| {
        let key = DecoratedKey::new(Bytes::copy_from_slice(&[0, 0, 0, n]));
        let mut flow = builder.push(Fragment::PartitionStart { key, tombstone }).expect("taken");
        if row {
            let row = RowBuilder::new(Some(Marker::new(10)), Tombstone::LIVE).finish();
            flow = builder.push(Fragment::Row { key: Clustering::EMPTY, row }).expect("taken");
        }
        assert_eq!(flow, Flow::Continue);
        builder.push(Fragment::PartitionEnd).expect("taken")
    };
    assert_eq!(partition(1, dead, false), Flow::Continue);
    assert_eq!(partition(2, dead, true), Flow::Continue);
    assert_eq!(partition(3, dead, true), Flow::Continue, "the third tombstone, and then a live row");
    assert_eq!(partition(4, Tombstone::LIVE, true), Flow::Continue);
    assert_eq!(partition(5, dead, false), Flow::Stop);
    let page = builder.finish();
    assert_eq!((page.rows, page.end, page.tombstones, page.examined_rows), (3, PageEnd::Tombstones, 4, 3));
    assert!(page.examined_bytes >= 5 * 4);
    let last = page.last.expect("a page that continues has its last position");
    assert_eq!((&last.key[..], last.region), (&[0, 0, 0, 5][..], Region::End));
}

/// A reduced page ends where a page of the rows would, and has one row of partial results. Without
/// rows it has none.
#[test]
fn rows_are_reduced_to_one_row_of_partial_results() {
    let schema = schema();
    let columns = vec![OutputColumn::Value(ColumnId(0)), OutputColumn::PartitionKey(0)];
    let reductions = [
        (AggregateKind::Count, None),
        (AggregateKind::Count, Some(0)),
        (AggregateKind::Min, Some(0)),
        (AggregateKind::Max, Some(1)),
        (AggregateKind::Sum, Some(0)),
        // There is no such column.
        (AggregateKind::Max, Some(7)),
    ];
    let reductions = reductions.map(|(kind, column)| Reduction { kind, column }).to_vec();
    let output = Output::new(columns, false, false).reduced(reductions);
    let limits = Limits { rows: 3, per_partition: 10, bytes: 1, tombstones: 9, unpaged_bytes: 1 << 20, paged: true };
    for (values, rows, end) in [
        (&[Some(4), None, Some(-9), Some(1)][..], 3, PageEnd::Rows),
        (&[Some(4), None], 2, PageEnd::Exhausted),
        (&[], 0, PageEnd::Exhausted),
    ] {
        let mut builder = PageBuilder::new(&schema, &output, limits, 1);
        for (n, value) in values.iter().take(3).enumerate() {
            let key = DecoratedKey::new(Bytes::copy_from_slice(&(n as i32).to_be_bytes()));
            builder.push(Fragment::PartitionStart { key, tombstone: Tombstone::LIVE }).expect("taken");
            let mut row = RowBuilder::new(Some(Marker::new(10)), Tombstone::LIVE);
            if let Some(value) = value {
                row.push(&Cell::live(ColumnId(0), 5, &i32::to_be_bytes(*value)));
            }
            builder.push(Fragment::Row { key: Clustering::EMPTY, row: row.finish() }).expect("taken");
        }
        let page = builder.finish();
        assert_eq!((page.rows, page.end), (rows, end));
        let present: Vec<i32> = values.iter().take(3).flatten().copied().collect();
        let parts: Vec<Option<Vec<u8>>> =
            crate::reduce::values(&page.body).map(|part| part.map(<[u8]>::to_vec)).collect();
        if rows == 0 {
            assert!(parts.is_empty());
            continue;
        }
        let count = present.len() as i64;
        let sum = [&count.to_be_bytes()[..], &present.iter().map(|v| i128::from(*v)).sum::<i128>().to_be_bytes()];
        let expected = [
            Some((rows as i64).to_be_bytes().to_vec()),
            Some(count.to_be_bytes().to_vec()),
            present.iter().min().map(|least| least.to_be_bytes().to_vec()),
            Some((rows as i32 - 1).to_be_bytes().to_vec()),
            Some(sum.concat()),
            None,
        ];
        assert_eq!(parts, expected);
    }
}

#[test]
fn a_row_of_which_only_a_dropped_column_is_left_is_not_seen() {
    let schema = schema();
    let output = Output::new(vec![OutputColumn::Value(ColumnId(0))], false, false);
    for (marker, column, rows) in [(None, 1, 0), (None, 0, 1), (Some(Marker::new(5)), 1, 1)] {
        let limits = Limits {
            rows: 10,
            per_partition: 10,
            bytes: 1 << 20,
            tombstones: 100,
            unpaged_bytes: 1 << 20,
            paged: true,
        };
        let mut builder = PageBuilder::new(&schema, &output, limits, 1);
        let key = DecoratedKey::new(Bytes::from_static(&[0, 0, 0, 1]));
        builder.push(Fragment::PartitionStart { key, tombstone: Tombstone::LIVE }).expect("taken");
        let mut row = RowBuilder::new(marker, Tombstone::LIVE);
        row.push(&Cell::live(ColumnId(column), 5, &[0, 0, 0, 7]));
        builder.push(Fragment::Row { key: Clustering::EMPTY, row: row.finish() }).expect("taken");
        builder.push(Fragment::PartitionEnd).expect("taken");
        assert_eq!(builder.finish().rows, rows, "column {column}");
    }
}

#[test]
fn a_column_that_is_named_many_times_is_counted_before_it_is_copied() {
    let schema = schema();
    for (paged, times, fits) in [(false, 9, true), (false, 11, false), (true, 9, true), (true, 11, false)] {
        let output = Output::new(vec![OutputColumn::Value(ColumnId(0)); times], false, false);
        let limits = Limits { rows: 1, per_partition: 1, bytes: 100, tombstones: 9, unpaged_bytes: 10_000, paged };
        let mut builder = PageBuilder::new(&schema, &output, limits, 1);
        let key = DecoratedKey::new(Bytes::from_static(&[0, 0, 0, 1]));
        builder.push(Fragment::PartitionStart { key, tombstone: Tombstone::LIVE }).expect("taken");
        let mut row = RowBuilder::new(None, Tombstone::LIVE);
        row.push(&Cell::live(ColumnId(0), 5, &[7; 1000]));
        let row = Fragment::Row { key: Clustering::EMPTY, row: row.finish() };
        assert_eq!(builder.weight_of(&row), row.weight() * times);
        let pushed = builder.push(row);
        assert_eq!(pushed.is_ok(), fits, "{times} times, paged {paged}");
        if let Err(error) = pushed {
            assert!(matches!(&error, ReplicaError::TooLarge(why) if why.contains("10000")), "{error}");
            assert_eq!(builder.bytes(), 0, "nothing was copied");
        }
    }
}

/// 65,536 is the first number that two bytes do not hold.
#[test]
fn each_repetition_of_a_column_has_its_value() {
    let schema = schema();
    for others in [vec![], vec![OutputColumn::WriteTime(ColumnId(0))]] {
        let mut columns = vec![OutputColumn::Value(ColumnId(0)); 65_538];
        columns.extend(others);
        let output = Output::new(columns, false, false);
        let limits =
            Limits { rows: 1, per_partition: 1, bytes: 4 << 20, tombstones: 9, unpaged_bytes: 4 << 20, paged: true };
        let mut builder = PageBuilder::new(&schema, &output, limits, 1);
        let key = DecoratedKey::new(Bytes::from_static(&[0, 0, 0, 1]));
        builder.push(Fragment::PartitionStart { key, tombstone: Tombstone::LIVE }).expect("taken");
        let mut row = RowBuilder::new(None, Tombstone::LIVE);
        row.push(&Cell::live(ColumnId(0), 5, &[7; 4]));
        builder.push(Fragment::Row { key: Clustering::EMPTY, row: row.finish() }).expect("taken");
        let page = builder.finish();
        assert!(values(&page.body).take(65_538).all(|value| value == Some(&[7; 4][..])));
        assert_eq!(values(&page.body).count(), output.columns.len());
    }
}

/// The same schema, with a map instead of `v`.
fn with_map() -> TableSchema {
    let TableSchema { id, version, keyspace, name, partition_key, clustering, regulars, options, .. } = schema();
    let map = Column { ty: CqlType::map(CqlType::Int, CqlType::Int), ..regulars[0].clone() };
    TableSchema::new(id, version, keyspace, name, partition_key, clustering, vec![], vec![map], vec![], options)
}

/// The page of a row with this many elements, and how often its builder was polled.
async fn page_of_elements(elements: i32, columns: Vec<OutputColumn>, large: bool) -> (Page, u32) {
    let (schema, output) = (with_map(), Output::new(columns, false, false));
    let limits =
        Limits { rows: 1, per_partition: 1, bytes: 64 << 20, tombstones: 9, unpaged_bytes: 64 << 20, paged: true };
    let mut builder = PageBuilder::new(&schema, &output, limits, 1);
    let key = DecoratedKey::new(Bytes::from_static(&[0, 0, 0, 1]));
    builder.push(Fragment::PartitionStart { key, tombstone: Tombstone::LIVE }).expect("taken");
    let mut row = RowBuilder::new(Some(Marker::new(5)), Tombstone::LIVE);
    for element in 0..elements {
        row.push(&Cell::live(ColumnId(0), 5, &[7; 4]).at(&element.to_be_bytes()));
    }
    let row = Fragment::Row { key: Clustering::EMPTY, row: row.finish() };
    let mut polls = 0;
    if large {
        let mut pushing = std::pin::pin!(builder.push_large(row));
        std::future::poll_fn(|context| {
            polls += 1;
            pushing.as_mut().poll(context)
        })
        .await
        .expect("taken");
    } else {
        builder.push(row).expect("taken");
    }
    (builder.finish(), polls)
}

#[test]
fn a_row_of_many_elements_is_written_in_parts() {
    let all = [
        OutputColumn::PartitionKey(0),
        OutputColumn::Value(ColumnId(0)),
        OutputColumn::Elements(ColumnId(0)),
        OutputColumn::CellTimes(ColumnId(0)),
        OutputColumn::WriteTime(ColumnId(0)),
    ];
    rt::block_on(async {
        for columns in [&all[..], &all[..1], &all[1..2]] {
            let (at_once, _) = page_of_elements(50_000, columns.to_vec(), false).await;
            let (in_parts, polls) = page_of_elements(50_000, columns.to_vec(), true).await;
            assert_eq!(in_parts, at_once);
            // Without a column of elements there is little to do.
            assert!(polls > 10 || columns.len() == 1, "{polls} polls");
        }
    });
}
