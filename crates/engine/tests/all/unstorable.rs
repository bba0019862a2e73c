//! Mutations in the commitlog that no sstable can hold: a release that did not check writes of
//! other nodes may have logged them. They keep no node from starting.

use crate::support::*;
use model::key::Clustering;
use model::mutation::{Mutation, MutationBuilder};
use model::range::{PartitionRange, Slice};
use model::row::{Marker, RowBuilder};
use model::schema::TableSchema;
use model::time::Tombstone;
use std::panic::AssertUnwindSafe;

fn row(schema: &TableSchema, values: usize) -> Mutation {
    let mut builder = MutationBuilder::new(schema.id, schema.version, &7i32.to_be_bytes());
    let key = Clustering::from_components(std::iter::repeat_n(&[0, 0, 0, 1][..], values));
    builder.row(key, RowBuilder::new(Some(Marker::new(1)), Tombstone::LIVE).finish());
    builder.finish(schema)
}

/// The mutation with another partition key.
fn with_key(mutation: &Mutation, key: &[u8]) -> Mutation {
    let bytes = mutation.as_bytes();
    let rest = &bytes[37 + mutation.key().len()..];
    let changed = [&bytes[..33], &(key.len() as u32).to_le_bytes(), key, rest].concat();
    Mutation::parse(changed.into()).unwrap()
}

#[test]
fn a_logged_mutation_that_cannot_be_stored_is_left_out() {
    let schema = schema(0, |options| {
        options.compaction.insert("enabled".into(), "false".into());
    });
    for (i, bad) in [with_key(&row(&schema, 1), &[7; 65_536]), row(&schema, 40)].into_iter().enumerate() {
        rt::block_on(async {
            let scratch = Scratch::new(&format!("unstorable-{i}"));
            let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
            let mut naive = Naive::default();
            for k in 0..2 {
                let change = Change::Insert { k, c: 1, value: "v".into() };
                engine.apply_durably(&change.mutation(&schema, 1), &key(k)).await.unwrap();
                naive.changes.push((1, change));
                // It is in the log when an assertion of the memtable fails.
                let apply = || drop(engine.apply(&bad, &bad.decorated_key()));
                drop(std::panic::catch_unwind(AssertUnwindSafe(apply)));
                engine.sync_log().await.unwrap();
            }
            engine.abandon().await;
            for _ in 0..2 {
                let engine = open(config(&scratch, 16 << 20), &schema, &tablets(1)).await;
                assert_eq!(read(&engine, schema.id, PartitionRange::FULL, Slice::full()).await, naive.seen());
                engine.flush(None).await.unwrap();
                engine.stop().await;
            }
        });
    }
}
