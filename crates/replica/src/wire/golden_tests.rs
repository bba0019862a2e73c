//! The bytes of the messages, by release. `tests/golden/wire-0.2.0.txt` has a line with name and
//! bytes for each message of this release, and `wire-0.1.0.txt` for each of release 0.1.0, which
//! this release sends unchanged. `MESSINA_BLESS=1` writes the file of this release.

use super::header::{Header, Report};
use super::{
    Response, decode_request, decode_response, encode_arrivals, encode_others, encode_request, encode_response,
};
use crate::arrivals::Arrival;
use crate::digest::Digest;
use crate::error::{LimitedBy, Overload, RateLimited, ReplicaError, Stale};
use crate::excess::Excess;
use crate::fragments::FragmentPage;
use crate::large_data::LargeKinds;
use crate::limiter::{LimitKey, LimitKind};
use crate::output::{Output, OutputColumn};
use crate::page::{Page, PageEnd, Position, Region};
use crate::reduce::Reduction;
use crate::request::{Class, Limits, Mutations, RateLimitMode, ReadCommand, ReplicaRequest, ReplicaResponse};
use crate::trace::TraceEvent;
use bytes::Bytes;
use model::aggregate::AggregateKind;
use model::fragment::Fragment;
use model::hex;
use model::id::{ColumnId, QueryId, SchemaVersion, TableId};
use model::key::{Clustering, ClusteringCut, DecoratedKey};
use model::mutation::{Mutation, MutationBuilder};
use model::options::TableOptions;
use model::range::{PartitionRange, Resume, RowRange, Slice};
use model::row::{Cell, Marker, Row, RowBuilder};
use model::schema::{Column, ColumnKind, TableSchema};
use model::time::Tombstone;
use model::types::CqlType;
use smallvec::smallvec;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use uuid::Uuid;

const THIS_RELEASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/wire-0.2.0.txt");
const FIRST_RELEASE: &str = include_str!("../../tests/golden/wire-0.1.0.txt");

fn key() -> DecoratedKey {
    DecoratedKey::new(Bytes::from_static(b"key"))
}

fn clustering() -> Clustering {
    Clustering::from_components([&b"c"[..]])
}

fn row() -> Row {
    let mut row = RowBuilder::new(Some(Marker::new(5)), Tombstone::LIVE);
    row.push(&Cell::live(ColumnId(1), 5, b"value"));
    row.finish()
}

fn mutation() -> Mutation {
    let mut mutation = MutationBuilder::new(TableId::from_bytes([1; 16]), SchemaVersion::from_bytes([2; 16]), b"key");
    mutation.delete_partition(Tombstone::new(4, 7));
    let key = Column {
        id: ColumnId(0),
        name: "pk".into(),
        kind: ColumnKind::PartitionKey,
        position: 0,
        ty: CqlType::Blob,
        descending: false,
    };
    mutation.finish(&TableSchema::new(
        TableId::from_bytes([1; 16]),
        SchemaVersion::from_bytes([2; 16]),
        "ks",
        "t",
        vec![key],
        Vec::new(),
        Vec::new(),
        Vec::new(),
        Vec::new(),
        TableOptions::default(),
    ))
}

fn command() -> ReadCommand {
    let columns = vec![
        OutputColumn::PartitionKey(0),
        OutputColumn::Clustering(1),
        OutputColumn::Value(ColumnId(3)),
        OutputColumn::WriteTime(ColumnId(3)),
        OutputColumn::Ttl(ColumnId(3)),
        OutputColumn::Elements(ColumnId(4)),
        OutputColumn::CellTimes(ColumnId(4)),
    ];
    let reductions = vec![
        Reduction { kind: AggregateKind::Count, column: None },
        Reduction { kind: AggregateKind::Avg, column: Some(0x0102) },
    ];
    let rows = ClusteringCut::before(clustering());
    ReadCommand {
        table: TableId::from_bytes([1; 16]),
        schema_version: SchemaVersion::from_bytes([2; 16]),
        ranges: smallvec![PartitionRange::singular(&key()), PartitionRange::FULL],
        slice: Rc::new(Slice {
            rows: vec![RowRange::prefix(clustering())],
            static_row: true,
            reversed: true,
            resume: Some(Resume {
                key: key(),
                rows: vec![RowRange { start: rows, end: ClusteringCut::END }],
                static_row: false,
            }),
        }),
        output: Rc::new(Output::new(columns, true, false).reduced(reductions)),
        limits: Limits { rows: 1, per_partition: 2, bytes: 3, tombstones: 4, paged: true, unpaged_bytes: 5 },
        now: 6,
        resumed_rows: 7,
        bypass_cache: true,
        query: Some(QueryId::from_bytes([8; 16])),
        first_page: true,
        ends_with_rows: false,
    }
}

fn header() -> Header {
    Header {
        class: Class::Maintenance,
        time_left_micros: 5_000_000,
        trace: Some(Uuid::from_u128(7)),
        metadata_number: 42,
        checks_large_data: true,
        rate_limit: RateLimitMode::Off,
    }
}

fn requests() -> Vec<(&'static str, Header, ReplicaRequest)> {
    let plain = Header { class: Class::User, trace: None, checks_large_data: false, ..header() };
    let two = Mutations::from_iter([(mutation(), key()), (mutation(), key())]);
    vec![
        ("read", header(), ReplicaRequest::Read(command().into())),
        ("digest", plain.clone(), ReplicaRequest::Digest(command().into())),
        ("read-and-digest", plain.clone(), ReplicaRequest::ReadAndDigest(command().into())),
        ("fragments", plain.clone(), ReplicaRequest::ReadFragments(command().into())),
        (
            "read-counted",
            Header { rate_limit: RateLimitMode::CountOnly, ..plain.clone() },
            ReplicaRequest::Read(command().into()),
        ),
        (
            "read-charged",
            Header { rate_limit: RateLimitMode::ChargeOnly, ..plain.clone() },
            ReplicaRequest::Read(command().into()),
        ),
        (
            "write-limited",
            Header { rate_limit: RateLimitMode::Enforce { draw: 0x0403_0201 }, ..plain.clone() },
            ReplicaRequest::write(mutation()),
        ),
        (
            "write-exempt",
            Header { rate_limit: RateLimitMode::Exempt, ..plain.clone() },
            ReplicaRequest::write(mutation()),
        ),
        ("write", plain, ReplicaRequest::write(mutation())),
        ("write-two", header(), ReplicaRequest::Write(two)),
        ("count", header(), ReplicaRequest::CounterUpdate((mutation(), key()))),
    ]
}

fn responses() -> Vec<(&'static str, Response)> {
    let last = Position { key: key().key, region: Region::Clustered, prefix: clustering(), weight: -1 };
    let page = Page {
        rows: 2,
        body: Bytes::from_static(b"rows"),
        last: Some(last.clone()),
        rows_in_last: 1,
        end: PageEnd::Rows,
        tombstones: 3,
        examined_rows: 4,
        examined_bytes: 5,
    };
    let digest = Digest { version: 1, hash: [9; 16] };
    let fragments = vec![
        Fragment::PartitionStart { key: key(), tombstone: Tombstone::new(-3, 7) },
        Fragment::Static(row()),
        Fragment::Change { at: ClusteringCut::before(clustering()), tombstone: Tombstone::new(4, 8) },
        Fragment::Row { key: clustering(), row: row() },
        Fragment::Change { at: ClusteringCut::END, tombstone: Tombstone::LIVE },
        Fragment::PartitionEnd,
    ];
    let event = TraceEvent { elapsed_micros: 70, node: None, shard: 3, activity: "a step".into() };
    let report = || Report { events: vec![event.clone()], large_data: LargeKinds::ROW };
    let table = TableId::from_bytes([1; 16]);
    let plain = |answer| Response::new(Ok(answer));
    let plain_error = |error| Response::new(Err(error));
    let limited = |kind, by, partition, excess| {
        plain_error(ReplicaError::RateLimited(RateLimited { kind, table, by, partition, excess }))
    };
    vec![
        ("page", plain(ReplicaResponse::Page(page.clone().into()))),
        ("written", plain(ReplicaResponse::Written)),
        ("written-with-report", Response { result: Ok(ReplicaResponse::Written), report: report() }),
        ("digested", plain(ReplicaResponse::Digested(page.into(), digest))),
        ("data", plain(ReplicaResponse::Fragments(FragmentPage { fragments, last: Some(last) }.into()))),
        ("counted", plain(ReplicaResponse::CounterUpdated(mutation()))),
        ("refused", Response { result: Err(ReplicaError::Rejected("too much".into())), report: report() }),
        ("overloaded", plain_error(ReplicaError::Overloaded(Overload::Reads { class: Class::User, waiting: 7 }))),
        ("overloaded-counters", plain_error(ReplicaError::Overloaded(Overload::Counters))),
        ("overloaded-writes", plain_error(ReplicaError::Overloaded(Overload::Writes))),
        ("fenced", plain_error(ReplicaError::stale(3, 5))),
        ("moved", plain_error(ReplicaError::Stale(Stale::Moved))),
        ("rate-limited", limited(LimitKind::Write, LimitedBy::Table, 0, Excess::default())),
        (
            "rate-limited-bytes",
            limited(LimitKind::ReadBytes, LimitedBy::Table, 3, Excess { limit: 5, observed: 7, retry_after_ms: 900 }),
        ),
        ("protected", limited(LimitKind::Write, LimitedBy::Protection, 0, Excess::default())),
        ("timeout", plain_error(ReplicaError::Timeout)),
    ]
}

fn encoded() -> BTreeMap<String, Bytes> {
    let requests = requests().into_iter().map(|(name, header, request)| (name, encode_request(&header, &request)));
    let responses = responses().into_iter().map(|(name, response)| (name, encode_response(&response).join()));
    let table = u128::from_be_bytes([1; 16]);
    let arrival = |kind, rate| Arrival { key: LimitKey { token: -2, table, kind }, rate };
    let arrivals = [arrival(LimitKind::Read, 0x0807_0605_0403_0201), arrival(LimitKind::Write, 1)];
    let reports = [("arrivals", encode_arrivals(arrivals.iter())), ("arrivals-others", encode_others(&[3, 4]))];
    requests.chain(responses).chain(reports).map(|(name, bytes)| (name.to_owned(), bytes)).collect()
}

#[test]
fn messages_have_the_bytes_of_their_release() {
    let lines: String = encoded().iter().map(|(name, bytes)| format!("{name} {}\n", hex(bytes))).collect();
    if std::env::var_os("MESSINA_BLESS").is_some() {
        std::fs::write(Path::new(THIS_RELEASE), &lines).expect("the file can be written");
    }
    let golden = std::fs::read_to_string(THIS_RELEASE).expect("the file is there");
    assert_eq!(lines, golden);
    for line in FIRST_RELEASE.lines() {
        assert!(lines.lines().any(|other| other == line), "release 0.1.0 sends other bytes: {line}");
    }
}

#[test]
fn messages_are_decoded_unless_they_are_cut() {
    for (name, header, request) in requests() {
        let bytes = encode_request(&header, &request);
        let (found, read) = decode_request(&bytes).expect("well-formed");
        assert_eq!((found, format!("{read:?}")), (header, format!("{request:?}")), "{name}");
        for len in 0..bytes.len() {
            assert!(decode_request(&bytes.slice(..len)).is_err(), "{name} cut at {len}");
        }
    }
    for (name, response) in responses() {
        let bytes = encode_response(&response).join();
        assert_eq!(decode_response(bytes.clone()).expect("well-formed"), response, "{name}");
        for len in 0..bytes.len() {
            assert!(decode_response(bytes.slice(..len)).is_err(), "{name} cut at {len}");
        }
    }
}
