//! Writes of a faulty node that no sstable of the table can hold are refused. If one reached a
//! memtable, that could never be flushed.

use crate::support::*;
use model::key::{Clustering, ClusteringCut};
use model::mutation::{Mutation, MutationBuilder, RangeTombstone};
use model::row::{Cell, Marker, RowBuilder};
use model::time::Tombstone;
use model::{ColumnId, TableSchema};
use replica::wire::{Header, decode_response, encode_request};
use replica::{Replica, ReplicaConfig, ReplicaError, ReplicaRequest, ReplicaResponse};

/// The mutation with another partition key.
fn with_key(mutation: &Mutation, key: &[u8]) -> Mutation {
    let bytes = mutation.as_bytes();
    let rest = &bytes[37 + mutation.key().len()..];
    let changed = [&bytes[..33], &(key.len() as u32).to_le_bytes(), key, rest].concat();
    Mutation::parse(changed.into()).expect("the layout is right")
}

/// A mutation of one row, with a cell of this column and value.
fn row(schema: &TableSchema, key: Clustering, column: u16, value: &[u8]) -> Mutation {
    let mut row = RowBuilder::new(Some(Marker::new(5)), Tombstone::LIVE);
    row.push(&Cell::live(ColumnId(column), 5, value));
    let mut builder = MutationBuilder::new(schema.id, schema.version, &1i32.to_be_bytes());
    builder.row(key, row.finish());
    builder.finish(schema)
}

fn range(schema: &TableSchema, start: Clustering, end: Clustering) -> Mutation {
    let mut builder = MutationBuilder::new(schema.id, schema.version, &1i32.to_be_bytes());
    let (start, end) = (ClusteringCut::before(start), ClusteringCut::after(end));
    builder.delete_range(RangeTombstone { start, end, tombstone: Tombstone::new(4, NOW) });
    builder.finish(schema)
}

#[test]
fn writes_that_no_sstable_can_hold_are_refused() {
    rt::block_on(async {
        let scratch = Scratch::new("malformed");
        let engine = engine(&scratch).await;
        let replica = Replica::new(engine.clone(), ReplicaConfig::with_memory(16 << 20));
        let schema = schema(1);
        let good = row(&schema, clustering(&[1, 2]), 1, b"v");
        let cut_off = Clustering(clustering(&[1, 2]).0.slice(..11));
        let bad = [
            ("long key", with_key(&good, &vec![7; 65_536])),
            ("three clustering values", row(&schema, clustering(&[1, 2, 3]), 1, b"v")),
            ("forty clustering values", row(&schema, clustering(&[1; 40]), 1, b"v")),
            ("a value of another length", row(&schema, Clustering::from_components([&b"abc"[..]]), 1, b"v")),
            ("bytes after the last value", row(&schema, cut_off, 1, b"v")),
            ("the start of a range", range(&schema, clustering(&[1; 40]), clustering(&[9]))),
            ("the end of a range", range(&schema, clustering(&[1]), clustering(&[9, 9, 9]))),
        ];
        let send = async |mutation: &Mutation| {
            let request = ReplicaRequest::write(mutation.clone());
            let answer = replica.serve(encode_request(&Header::of(&context()), &request), context().deadline).await;
            decode_response(answer).expect("well formed").result
        };
        for (name, mutation) in &bad {
            let refused = send(mutation).await;
            assert!(matches!(refused, Err(ReplicaError::Rejected(_))), "{name}: {refused:?}");
        }
        let longest = with_key(&good, &vec![7; 65_535]);
        for (name, mutation) in [("good", &good), ("longest key", &longest)] {
            let written = send(mutation).await;
            assert!(matches!(written, Ok(ReplicaResponse::Written)), "{name}: {written:?}");
        }
        engine.flush(None).await.expect("all can be stored");
        assert_eq!(engine.table_stats(schema.id).expect("the table is there").partitions, 2);
        engine.stop().await;
    });
}
