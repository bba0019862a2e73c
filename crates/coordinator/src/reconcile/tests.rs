//! Pages of replicas that differ are merged into one: compared with a model that has all data, cut
//! at the first stop of any replica.

use super::*;
use bytes::Bytes;
use model::id::{ColumnId, SchemaVersion, TableId};
use model::options::TableOptions;
use model::range::{PartitionRange, Resume, RowRange, Slice};
use model::row::{Cell, Marker, RowBuilder};
use model::schema::{Column, ColumnKind};
use model::types::CqlType;
use proptest::prelude::*;
use replica::{Limits, Output, OutputColumn};
use smallvec::smallvec;
use uuid::Uuid;

const NOW: Seconds = 1000;
const VALUE: ColumnId = ColumnId(0);

/// A limit that no repair reaches.
const MOST: usize = 1 << 20;

fn schema() -> Rc<TableSchema> {
    let column =
        |name: &str, kind, ty| Column { id: VALUE, name: name.into(), kind, position: 0, ty, descending: false };
    Rc::new(TableSchema::new(
        TableId(Uuid::from_u128(7)),
        SchemaVersion(Uuid::from_u128(1)),
        "ks",
        "t",
        vec![column("k", ColumnKind::PartitionKey, CqlType::Int)],
        vec![column("c", ColumnKind::Clustering, CqlType::Int)],
        Vec::new(),
        vec![column("v", ColumnKind::Regular, CqlType::Int)],
        Vec::new(),
        TableOptions::default(),
    ))
}

fn key(k: i32) -> DecoratedKey {
    DecoratedKey::new(Bytes::copy_from_slice(&k.to_be_bytes()))
}

fn clustering(c: i32) -> Clustering {
    Clustering::from_components([&c.to_be_bytes()[..]])
}

fn row(timestamp: i64, value: i32) -> Row {
    let mut row = RowBuilder::new(Some(Marker::new(timestamp)), Tombstone::LIVE);
    row.push(&Cell::live(VALUE, timestamp, &value.to_be_bytes()));
    row.finish()
}

fn dead_row(timestamp: i64) -> Row {
    RowBuilder::new(None, Tombstone::new(timestamp, NOW)).finish()
}

/// A stream of one partition: `rows` in order.
fn stream(k: i32, tombstone: Tombstone, rows: &[(i32, Row)]) -> Vec<Fragment> {
    let mut out = vec![Fragment::PartitionStart { key: key(k), tombstone }];
    out.extend(rows.iter().map(|(c, row)| Fragment::Row { key: clustering(*c), row: row.clone() }));
    out.push(Fragment::PartitionEnd);
    out
}

fn at(k: i32, c: i32) -> Position {
    Position { key: key(k).key, region: Region::Clustered, prefix: clustering(c), weight: 0 }
}

fn part(fragments: Vec<Fragment>, last: Option<Position>) -> FragmentPage {
    FragmentPage { fragments, last }
}

fn output() -> Output {
    Output::new(vec![OutputColumn::Clustering(0), OutputColumn::Value(VALUE)], false, false)
}

/// Requests a page of this many rows of all partitions.
fn command(rows: u64) -> ReadCommand {
    let limits = Limits {
        rows,
        per_partition: u64::MAX,
        bytes: u64::MAX,
        tombstones: u64::MAX,
        paged: true,
        unpaged_bytes: u64::MAX,
    };
    ReadCommand {
        table: schema().id,
        schema_version: schema().version,
        ranges: smallvec![PartitionRange::FULL],
        slice: Rc::new(Slice::full()),
        output: Rc::new(output()),
        limits,
        now: NOW,
        resumed_rows: 0,
        bypass_cache: false,
        query: None,
        first_page: true,
        ends_with_rows: false,
    }
}

/// Clustering keys and values of a page.
fn rows_of(page: &Page) -> Vec<(i32, i32)> {
    let number = |at: usize| i32::from_be_bytes(page.body[at..at + 4].try_into().expect("four bytes"));
    (0..page.body.len() / 16).map(|i| (number(16 * i + 4), number(16 * i + 12))).collect()
}

/// The contents of a mutation: its rows, and whether it deletes the partition.
fn told(mutation: &Mutation) -> (Vec<i32>, bool, usize) {
    let parts = mutation.parts();
    let (deletes, ranges) = (!parts.tombstone.is_live(), parts.range_tombstones.len());
    let number = |key: Clustering| i32::from_be_bytes(key.components().next().unwrap().try_into().unwrap());
    (parts.rows.map(|(key, _)| number(key)).collect(), deletes, ranges)
}

#[test]
fn each_replica_gets_what_it_lacks() {
    let a = stream(1, Tombstone::LIVE, &[(1, row(5, 10)), (2, row(5, 20)), (3, dead_row(9))]);
    let b = stream(1, Tombstone::LIVE, &[(1, row(6, 11)), (3, row(5, 30)), (4, row(5, 40))]);
    let merged = merge(&schema(), false, NOW, MOST, vec![part(a, None), part(b, None), part(Vec::new(), None)]);
    let (page, more) = page_of(&schema(), &command(100), &merged).expect("a page");
    assert_eq!((rows_of(&page), more), (vec![(1, 11), (2, 20), (4, 40)], false));
    let told: Vec<Vec<_>> = merged.repairs.iter().map(|all| all.iter().map(told).collect()).collect();
    assert_eq!(told[0], [(vec![1, 4], false, 0)]);
    assert_eq!(told[1], [(vec![2, 3], false, 0)]);
    assert_eq!(told[2], [(vec![1, 2, 3, 4], false, 0)]);
}

#[test]
fn a_large_repair_has_several_mutations() {
    let rows: Vec<_> = (0..100).map(|c| (c, row(5, c))).collect();
    let tombstone = Tombstone::new(3, NOW);
    let all = stream(1, tombstone, &rows);
    let one = rows[0].1.0.len() + clustering(0).0.len() + ROW_HEAD;
    let merged = merge(&schema(), false, NOW, 10 * one, vec![part(all.clone(), None), part(Vec::new(), None)]);
    let told: Vec<_> = merged.repairs[1].iter().map(told).collect();
    assert!(told[0].1 && told[1..].iter().all(|(_, deletes, _)| !deletes));
    assert!(told.iter().all(|(rows, ..)| rows.len() == 10) && told.len() == 10, "{told:?}");
    assert_eq!(told.into_iter().flat_map(|(rows, ..)| rows).collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
    let merged = merge(&schema(), false, NOW, 1, vec![part(all, None), part(Vec::new(), None)]);
    assert_eq!(merged.repairs[1].len(), 100, "a row is not divided");
}

#[test]
fn deleted_rows_are_not_sent_as_repairs() {
    let tombstone = Tombstone::new(7, NOW);
    let a = stream(1, Tombstone::LIVE, &[(1, row(5, 10)), (2, row(8, 20))]);
    let b = stream(1, tombstone, &[(3, row(9, 30))]);
    let merged = merge(&schema(), false, NOW, MOST, vec![part(a, None), part(b, None)]);
    let (page, _) = page_of(&schema(), &command(100), &merged).expect("a page");
    assert_eq!(rows_of(&page), [(2, 20), (3, 30)]);
    assert_eq!(told(&merged.repairs[0][0]), (vec![3], true, 0));
    assert_eq!(told(&merged.repairs[1][0]), (vec![2], false, 0), "row 1 is deleted");
}

#[test]
fn data_not_known_of_every_replica_is_cut_off() {
    let a = stream(1, Tombstone::LIVE, &[(1, row(5, 10)), (2, row(5, 20))]);
    let b = stream(1, Tombstone::LIVE, &[(1, dead_row(6)), (2, dead_row(6)), (3, row(5, 30)), (4, row(5, 40))]);
    // The first replica returned two rows and may have more. Rows of the second behind them may be
    // deleted on the first.
    let merged = merge(&schema(), false, NOW, MOST, vec![part(a, Some(at(1, 2))), part(b, Some(at(1, 4)))]);
    assert_eq!(merged.cut, Some(at(1, 2)));
    let (page, more) = page_of(&schema(), &command(2), &merged).expect("a page");
    assert_eq!((rows_of(&page), more, page.last, page.rows_in_last), (vec![], true, Some(at(1, 2)), 0));
    assert_eq!(told(&merged.repairs[0][0]), (vec![1, 2], false, 0));
    assert!(merged.repairs[1].is_empty());
}

#[test]
fn open_deletions_end_at_the_cut() {
    let tombstone = Tombstone::new(7, NOW);
    let change = |c: i32, after: bool, tombstone| Fragment::Change {
        at: ClusteringCut { prefix: clustering(c), after },
        tombstone,
    };
    let a = vec![
        Fragment::PartitionStart { key: key(1), tombstone: Tombstone::LIVE },
        change(1, false, tombstone),
        Fragment::Row { key: clustering(3), row: row(8, 30) },
        change(9, true, Tombstone::LIVE),
        Fragment::PartitionEnd,
    ];
    let b = stream(1, Tombstone::LIVE, &[(2, row(5, 20)), (3, row(8, 30))]);
    let merged = merge(&schema(), false, NOW, MOST, vec![part(a.clone(), None), part(b.clone(), Some(at(1, 3)))]);
    let (page, more) = page_of(&schema(), &command(9), &merged).expect("a page");
    assert_eq!((rows_of(&page), more, page.rows_in_last), (vec![(3, 30)], true, 1));
    let repair = &merged.repairs[1][0];
    let [range] = &repair.parts().range_tombstones[..] else { panic!("one range") };
    assert_eq!(
        (&range.start, &range.end),
        (&ClusteringCut::before(clustering(1)), &ClusteringCut::after(clustering(3)))
    );
    // If everything is known, the page ends where the data ends.
    let merged = merge(&schema(), false, NOW, MOST, vec![part(a, None), part(b, None)]);
    let [range] = &merged.repairs[1][0].parts().range_tombstones[..] else { panic!("one range") };
    assert_eq!(range.end, ClusteringCut::after(clustering(9)));
}

/// A deletion that is open at the end of a page was counted there. Otherwise, with a limit of one
/// tombstone, each following page would end where it begins.
#[test]
fn a_deletion_that_is_open_where_a_page_begins_does_not_end_it() {
    let tombstone = Tombstone::new(7, NOW);
    let cut = ClusteringCut::before(clustering(3));
    let own = vec![
        Fragment::PartitionStart { key: key(1), tombstone: Tombstone::LIVE },
        Fragment::Change { at: cut.clone(), tombstone },
        Fragment::Change { at: ClusteringCut::after(clustering(9)), tombstone: Tombstone::LIVE },
        Fragment::PartitionEnd,
    ];
    let merged = merge(&schema(), false, NOW, MOST, vec![part(own.clone(), None), part(own, None)]);
    let mut command = command(9);
    command.limits.tombstones = 1;
    let place = |page: Page| page.last.map(|last| (last.prefix, last.weight));
    let (first, _) = page_of(&schema(), &command, &merged).expect("a page");
    assert_eq!(place(first), Some((clustering(3), -1)));
    let rows = vec![RowRange { start: cut, end: ClusteringCut::END }];
    let resume = Resume { key: key(1), rows, static_row: true };
    command.slice = Rc::new(Slice { resume: Some(resume), ..Slice::full() });
    let (second, _) = page_of(&schema(), &command, &merged).expect("a page");
    assert_eq!(place(second), Some((clustering(9), 1)));
}

#[test]
fn reversed_deletions_are_repaired_in_the_tables_order() {
    let tombstone = Tombstone::new(7, NOW);
    // Rows from 9 down to 4 are deleted: a reversed reader names the cuts the other way round.
    let a = vec![
        Fragment::PartitionStart { key: key(1), tombstone: Tombstone::LIVE },
        Fragment::Change { at: ClusteringCut::before(clustering(9)), tombstone },
        Fragment::Change { at: ClusteringCut::after(clustering(4)), tombstone: Tombstone::LIVE },
        Fragment::PartitionEnd,
    ];
    let b = stream(1, Tombstone::LIVE, &[(8, row(5, 80)), (2, row(5, 20))]);
    let merged = merge(&schema(), true, NOW, MOST, vec![part(a, None), part(b, None)]);
    let (page, _) = page_of(&schema(), &command(9), &merged).expect("a page");
    assert_eq!(rows_of(&page), [(2, 20)]);
    let [range] = &merged.repairs[1][0].parts().range_tombstones[..] else { panic!("one range") };
    assert_eq!(
        (&range.start, &range.end),
        (&ClusteringCut::before(clustering(4)), &ClusteringCut::after(clustering(9)))
    );
}

#[test]
fn positions_are_ordered_as_they_are_read() {
    let (near, far) = if key(1) < key(2) { (1, 2) } else { (2, 1) };
    let order = schema().order.clone();
    let end = |k: i32| Position { key: key(k).key, region: Region::End, prefix: Clustering::EMPTY, weight: 0 };
    let fixed = Position { region: Region::Static, ..end(near) };
    let behind = Position { weight: 1, ..at(near, 1) };
    let all = [fixed, at(near, 1), behind, at(near, 2), end(near), at(far, 0), end(far)];
    for (i, a) in all.iter().enumerate() {
        for (j, b) in all.iter().enumerate() {
            assert_eq!(compare(&order, a, b), i.cmp(&j), "{a:?} {b:?}");
        }
    }
    assert_eq!(compare(&order.reversed(), &at(1, 1), &at(1, 2)), Ordering::Greater);
}

#[test]
fn pages_end_with_the_first() {
    let page = |end, last| Page {
        rows: 0,
        body: bytes::Bytes::new(),
        last,
        rows_in_last: 0,
        end,
        tombstones: 0,
        examined_rows: 0,
        examined_bytes: 0,
    };
    let order = schema().order.clone();
    let whole = page(PageEnd::Exhausted, Some(at(1, 1)));
    let early = page(PageEnd::Tombstones, Some(at(1, 3)));
    let late = page(PageEnd::Rows, Some(at(1, 5)));
    assert_eq!(first_end(&order, [&whole].into_iter()), None);
    assert_eq!(first_end(&order, [&whole, &late, &early].into_iter()), Some(&early));
}

/// The data of replicas in two partitions: for each row (partition, clustering, timestamp; even
/// timestamps delete).
fn any_replica() -> impl Strategy<Value = Vec<(i32, i32, i64)>> {
    prop::collection::vec((1..3i32, 0..6i32, 1..12i64), 0..12)
}

fn fragments_of(rows: &[(i32, i32, i64)]) -> Vec<Fragment> {
    let mut keys: Vec<i32> = rows.iter().map(|(k, ..)| *k).collect();
    keys.sort_by_key(|k| key(*k));
    keys.dedup();
    let of = |k: i32| {
        let mut newest: std::collections::BTreeMap<i32, i64> = std::collections::BTreeMap::new();
        for (_, c, timestamp) in rows.iter().filter(|(other, ..)| *other == k) {
            let kept = newest.entry(*c).or_insert(*timestamp);
            *kept = (*kept).max(*timestamp);
        }
        let row = |(c, t): (i32, i64)| (c, if t % 2 == 0 { dead_row(t) } else { row(t, t as i32) });
        stream(k, Tombstone::LIVE, &newest.into_iter().map(row).collect::<Vec<_>>())
    };
    keys.into_iter().flat_map(of).collect()
}

/// The part that a replica returns if it stops after `n` rows.
fn told_by(fragments: &[Fragment], n: usize) -> FragmentPage {
    let (mut rows, mut at_key) = (0, Bytes::new());
    for (i, fragment) in fragments.iter().enumerate() {
        match fragment {
            Fragment::PartitionStart { key, .. } => at_key = key.key.clone(),
            Fragment::Row { key, .. } => {
                rows += 1;
                if rows == n {
                    let last = Position { key: at_key, region: Region::Clustered, prefix: key.clone(), weight: 0 };
                    return part(fragments[..=i].to_vec(), Some(last));
                }
            }
            _ => {}
        }
    }
    part(fragments.to_vec(), None)
}

proptest! {
    /// Pages of the data of three replicas, each returning a part at a time, are the merge of all.
    /// A replica that gets its repairs has that data too.
    #[test]
    fn pages_are_those_of_the_merge(replicas in prop::collection::vec(any_replica(), 3), n in 1usize..4, wanted in 1u64..4) {
        let schema = schema();
        let all: Vec<Vec<Fragment>> = replicas.iter().map(|rows| fragments_of(rows)).collect();
        let whole = merge(&schema, false, NOW, MOST, all.iter().map(|own| part(own.clone(), None)).collect());
        let (expected, more) = page_of(&schema, &command(u64::MAX), &whole).expect("a page");
        prop_assert!(!more);
        let mut found = Vec::new();
        let mut start: Option<Position> = None;
        for _ in 0..100 {
            let rest = |own: &Vec<Fragment>| match &start {
                None => own.clone(),
                Some(after) => behind(own, after),
            };
            let parts = all.iter().map(|own| told_by(&rest(own), n)).collect();
            let merged = merge(&schema, false, NOW, MOST, parts);
            let (page, more) = page_of(&schema, &command(wanted), &merged).expect("a page");
            found.extend(rows_of(&page));
            if !more && page.end == PageEnd::Exhausted {
                break;
            }
            start = page.last.clone();
        }
        prop_assert_eq!(found, rows_of(&expected));
        for (own, repairs) in all.iter().zip(&whole.repairs) {
            let mut healed = vec![own.clone()];
            healed.extend(repairs.iter().map(|repair| {
                let parts = repair.parts();
                let k = i32::from_be_bytes(parts.key[..].try_into().unwrap());
                let rows: Vec<_> = parts.rows
                    .map(|(key, row)| (i32::from_be_bytes(key.components().next().unwrap().try_into().unwrap()), row))
                    .collect();
                stream(k, parts.tombstone, &rows)
            }));
            let healed = merge_all(&schema, &schema.order, healed);
            prop_assert_eq!(healed, whole.fragments.clone());
        }
    }
}

/// The fragments behind a position.
fn behind(own: &[Fragment], after: &Position) -> Vec<Fragment> {
    let target = DecoratedKey::new(after.key.clone());
    let mut out = Vec::new();
    let mut current: Option<DecoratedKey> = None;
    for fragment in own {
        if let Fragment::PartitionStart { key, .. } = fragment {
            current = Some(key.clone());
        }
        let key = current.as_ref().expect("a partition");
        let keep = match key.cmp(&target) {
            Ordering::Less => false,
            Ordering::Greater => true,
            Ordering::Equal => match fragment {
                _ if after.region == Region::End => false,
                Fragment::Row { key, .. } => schema().order.compare_rows(key, &after.prefix).is_gt(),
                _ => true,
            },
        };
        if keep {
            out.push(fragment.clone());
        }
    }
    out
}
