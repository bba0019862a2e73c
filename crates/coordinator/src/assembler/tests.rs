//! What a page reads, part by part, and when it is complete.

use super::*;
use crate::read::QueryPartitions;
use cluster::metadata::{ColumnDefinition, KeyspaceDefinition, Metadata, Op, TableDefinition, TabletsDefinition};
use cluster::tablets::TabletReplica;
use model::TableId;
use model::id::{ColumnId, HostId, SchemaVersion};
use model::key::{Clustering, DecoratedKey};
use model::options::TableOptions;
use model::schema::ColumnKind;
use replica::{Output, Region};
use smallvec::SmallVec;
use uuid::Uuid;

const TABLE: TableId = TableId(Uuid::from_u128(1));
const LIMITS: PageLimits = PageLimits {
    bytes: 1000,
    tombstones: 100,
    tombstones_are_set: false,
    unpaged_bytes: 5000,
    empty_page_time: rt::time::Duration::ZERO,
    empty_page_bytes: 0,
    state_expiry: rt::time::Duration::ZERO,
    key_rotation: rt::time::Duration::ZERO,
};

fn metadata() -> Metadata {
    let column = |name: &str, kind| ColumnDefinition {
        id: ColumnId(0),
        name: name.into(),
        kind,
        ty: "int".into(),
        descending: false,
    };
    let table = TableDefinition {
        id: TABLE,
        version: SchemaVersion(Uuid::from_u128(1)),
        keyspace: "ks".into(),
        name: "t".into(),
        columns: vec![column("k", ColumnKind::PartitionKey), column("c", ColumnKind::Clustering)],
        dropped: Vec::new(),
        options: TableOptions::default(),
    };
    let keyspace = KeyspaceDefinition {
        name: "ks".into(),
        replication: Default::default(),
        durable_writes: true,
        tablets: Default::default(),
    };
    let here = vec![TabletReplica { host: HostId(Uuid::from_u128(1)), shard: 0 }];
    let tablets = TabletsDefinition { table: TABLE, replicas: vec![here.clone(), here] };
    let ops = [Op::PutKeyspace(keyspace), Op::PutTable(Box::new(table)), Op::PutTablets(tablets)];
    Metadata::empty().with(&ops).expect("the changes fit")
}

fn key(k: i32) -> DecoratedKey {
    DecoratedKey::new(Bytes::copy_from_slice(&k.to_be_bytes()))
}

/// A query of these partitions, or of all if there are none.
fn query(keys: &[i32], limit: Option<u64>) -> Query {
    let keys: SmallVec<[DecoratedKey; 1]> = keys.iter().map(|k| key(*k)).collect();
    Query {
        table: metadata().table_by_id(TABLE).expect("it was made").clone(),
        partitions: if keys.is_empty() {
            QueryPartitions::Range(PartitionRange::FULL)
        } else {
            QueryPartitions::Keys(keys)
        },
        slice: Rc::new(Slice::full()),
        output: Rc::new(Output::new(Vec::new(), false, false)),
        limit,
        per_partition_limit: None,
        now: 0,
        bypass_cache: false,
    }
}

fn paged(size: u64) -> PageRequest {
    PageRequest { size: Some(size), ..PageRequest::default() }
}

fn new<'a>(query: &'a Query, page: &PageRequest, limits: &'a PageLimits) -> Option<PageAssembler<'a>> {
    PageAssembler::new(query, page, limits, || QueryId(Uuid::from_u128(1)))
}

/// A position after a row of a partition.
fn after(k: i32, c: i32) -> Position {
    let prefix = Clustering::from_components([&c.to_be_bytes()[..]]);
    Position { key: key(k).key, region: Region::Clustered, prefix, weight: 0 }
}

/// A part of `rows` rows of one byte each, which ended after a row of a partition.
fn part(rows: u64, end: PageEnd, at: (i32, i32)) -> Box<Page> {
    Box::new(Page {
        rows,
        body: Bytes::from(vec![b'r'; rows as usize]),
        last: Some(after(at.0, at.1)),
        rows_in_last: rows,
        end,
        tombstones: if end == PageEnd::Tombstones { 100 } else { 3 },
        examined_rows: rows,
        examined_bytes: 10,
    })
}

#[test]
fn tablets_are_read_one_after_the_other_for_the_remaining_rows() {
    let query = query(&[], None);
    let mut page = new(&query, &paged(10), &LIMITS).unwrap();
    let (first, range) = page.next_target().unwrap();
    let command = page.command(range);
    assert_eq!((first, command.limits.rows, command.limits.bytes, command.limits.tombstones), (0, 10, 1000, 100));
    assert!(command.first_page && command.query.is_some() && !command.ends_with_rows);
    assert_eq!(page.add(part(4, PageEnd::Exhausted, (1, 1)), false), Ok(Step::Next));
    let (second, range) = page.next_target().unwrap();
    let command = page.command(range);
    assert_eq!((second, command.limits.rows, command.limits.bytes, command.limits.tombstones), (1, 6, 996, 97));
    assert_eq!(page.add(part(6, PageEnd::Rows, (2, 9)), false), Ok(Step::Done));
    let page = page.finish(None);
    assert_eq!((page.rows, page.body.len(), page.info.stop, page.info.asked), (10, 10, PageStop::Rows, 2));
    let next = page.next.expect("there may be more");
    assert_eq!((next.position, next.rows_in_last, next.remaining), (after(2, 9), 6, u64::MAX));
}

#[test]
fn the_page_after_begins_behind_the_one_before() {
    let query = query(&[1, 2, 3], Some(10));
    let mut first = new(&query, &paged(4), &LIMITS).unwrap();
    first.next_target().unwrap();
    assert_eq!(first.add(part(1, PageEnd::Exhausted, (1, 1)), false), Ok(Step::Next));
    first.next_target().unwrap();
    assert_eq!(first.add(part(3, PageEnd::Rows, (2, 7)), false), Ok(Step::Done));
    let state = first.finish(None).next.expect("there may be more");
    assert_eq!(state.remaining, 6);
    let request = PageRequest { state: Some(state), ..paged(4) };
    let mut second = new(&query, &request, &LIMITS).unwrap();
    let (_, range) = second.next_target().unwrap();
    assert_eq!(range.singular_key(), Some(key(2)), "there may be more in it");
    let command = second.command(range);
    assert!(!command.first_page && command.slice.resume.is_some());
    assert_eq!((command.resumed_rows, command.limits.rows), (3, 4));
    let other = self::query(&[1, 3], Some(10));
    assert!(new(&other, &request, &LIMITS).is_none(), "the state is of another query");
}

#[test]
fn nothing_follows_the_limit_of_the_statement() {
    let query = query(&[1], Some(5));
    let mut page = new(&query, &paged(100), &LIMITS).unwrap();
    let (_, range) = page.next_target().unwrap();
    assert!(page.command(range).ends_with_rows);
    assert_eq!(page.add(part(5, PageEnd::Rows, (1, 5)), false), Ok(Step::Done));
    let page = page.finish(None);
    assert_eq!((page.info.stop, page.next), (PageStop::Limit, None));
}

#[test]
fn an_unpaged_read_has_no_next_page() {
    let query = query(&[1], None);
    let mut page = new(&query, &PageRequest::default(), &LIMITS).unwrap();
    assert!(!page.is_paged());
    let (_, range) = page.next_target().unwrap();
    let command = page.command(range);
    assert!(!command.limits.paged && command.query.is_none());
    assert_eq!(page.add(part(9, PageEnd::Exhausted, (1, 9)), false), Ok(Step::Next));
    assert_eq!(page.next_target(), None);
    assert_eq!(page.finish(None).next, None);
}

#[test]
fn the_parts_of_an_unpaged_read_share_one_limit_of_bytes() {
    let query = query(&[], None);
    let limits = PageLimits { unpaged_bytes: 10, ..LIMITS };
    let unpaged = PageRequest::default();
    let mut page = new(&query, &unpaged, &limits).unwrap();
    let (_, range) = page.next_target().unwrap();
    assert_eq!(page.add(part(6, PageEnd::Exhausted, (1, 6)), false), Ok(Step::Next));
    assert_eq!(page.command(range).limits.unpaged_bytes, 10, "an error of the replica names the limit as it is set");
    assert_eq!(page.add(part(5, PageEnd::Exhausted, (2, 5)), false), Err(PartError::TooLarge));
    let mut page = new(&query, &paged(100), &limits).unwrap();
    for k in [1, 2] {
        assert_eq!(page.add(part(6, PageEnd::Exhausted, (k, 6)), false), Ok(Step::Next), "pages have another limit");
    }
}

#[test]
fn a_page_without_rows_resumes_behind_tombstones_unless_the_operator_has_set_their_limit() {
    let query = query(&[], None);
    let mut page = new(&query, &paged(10), &LIMITS).unwrap();
    page.next_target().unwrap();
    assert_eq!(page.add(part(0, PageEnd::Tombstones, (1, 8)), false), Ok(Step::Empty));
    page.resume_after_tombstones().unwrap();
    let (_, range) = page.next_target().unwrap();
    assert!(range.contains(&key(1)), "there may be more in it");
    assert_eq!(page.command(range).limits.tombstones, 100, "those before do not count any more");
    assert_eq!(page.add(part(1, PageEnd::Tombstones, (1, 9)), false), Ok(Step::Done), "it has a row");
    assert_eq!(page.finish(None).info.stop, PageStop::Tombstones);

    let set = PageLimits { tombstones_are_set: true, ..LIMITS };
    let mut page = new(&query, &paged(10), &set).unwrap();
    page.next_target().unwrap();
    assert_eq!(page.add(part(0, PageEnd::Tombstones, (1, 8)), false), Ok(Step::Done));
    assert!(page.finish(None).next.is_some());
}

#[test]
fn a_page_that_found_nothing_in_its_budget_goes_to_the_client() {
    let query = query(&[], None);
    let mut page = new(&query, &paged(10), &LIMITS).unwrap();
    page.next_target().unwrap();
    assert_eq!(page.add(part(0, PageEnd::Tombstones, (1, 8)), false), Ok(Step::Empty));
    page.stop(PageStop::Memory);
    let page = page.finish(None);
    assert_eq!((page.info.stop, page.rows), (PageStop::Memory, 0));
    assert_eq!(page.next.expect("there may be more").position, after(1, 8));
}

#[test]
fn where_replicas_were_merged_the_rest_is_asked_for_or_the_page_ends() {
    let query = query(&[], None);
    let mut page = new(&query, &paged(10), &LIMITS).unwrap();
    page.next_target().unwrap();
    assert_eq!(page.add(part(0, PageEnd::Exhausted, (1, 8)), true), Ok(Step::Resumed));
    let (_, range) = page.next_target().unwrap();
    assert!(page.command(range).slice.resume.is_some());
    assert_eq!(page.add(part(2, PageEnd::Exhausted, (1, 9)), true), Ok(Step::Done), "it has rows");
    let page = page.finish(None);
    assert_eq!(page.info.stop, PageStop::Bytes);
    assert!(page.next.is_some());

    let mut whole = new(&query, &PageRequest::default(), &LIMITS).unwrap();
    whole.next_target().unwrap();
    assert_eq!(whole.add(part(2, PageEnd::Exhausted, (1, 9)), true), Ok(Step::Resumed), "all is wanted at once");
}
