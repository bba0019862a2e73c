//! Counter updates: whatever happens in between, a counter has the sum of all updates since its
//! last deletion.

use crate::support;

use engine::{Engine, EngineConfig, TabletRange};
use model::counter;
use model::key::Clustering;
use model::mutation::{Mutation, MutationBuilder};
use model::options::TableOptions;
use model::range::{PartitionRange, RowRange, Slice};
use model::row::{Cell, RowBuilder};
use model::schema::{Column, ColumnKind, TableSchema};
use model::time::Tombstone;
use model::{ColumnId, CounterId, CqlType, HostId, SchemaVersion, TableId};
use proptest::prelude::*;
use replica::{
    Output, OutputColumn, ReadCommand, Replica, ReplicaConfig, ReplicaError, ReplicaRequest, ReplicaResponse,
};
use rt::ShardId;
use smallvec::smallvec;
use std::collections::BTreeMap;
use std::rc::Rc;
use support::{Scratch, clustering, context, key, limits};
use uuid::Uuid;

const STATIC: ColumnId = ColumnId(0);
const VALUE: ColumnId = ColumnId(1);

/// `t (k int, c int, s counter static, v counter, primary key (k, c))`.
fn schema() -> Rc<TableSchema> {
    let column = |id: u16, name: &str, kind: ColumnKind, ty: CqlType| Column {
        id: ColumnId(id),
        name: name.into(),
        kind,
        position: 0,
        ty,
        descending: false,
    };
    Rc::new(TableSchema::new(
        TableId(Uuid::from_u128(0x99)),
        SchemaVersion(Uuid::from_u128(1)),
        "ks",
        "t",
        vec![column(0, "k", ColumnKind::PartitionKey, CqlType::Int)],
        vec![column(0, "c", ColumnKind::Clustering, CqlType::Int)],
        vec![column(STATIC.0, "s", ColumnKind::Static, CqlType::Counter)],
        vec![column(VALUE.0, "v", ColumnKind::Regular, CqlType::Counter)],
        Vec::new(),
        TableOptions::default(),
    ))
}

async fn replica(scratch: &Scratch) -> (Rc<Engine>, Rc<Replica>) {
    let mut config = EngineConfig::new(scratch.to_path_buf(), ShardId(0), HostId(Uuid::from_u128(1)), 64 << 20);
    config.auto_compaction = false;
    config.auto_snapshot = false;
    let engine = Engine::open(config).await.unwrap();
    engine.add_table(schema(), vec![TabletRange { id: 0, range: PartitionRange::FULL }]).await.unwrap();
    engine.start();
    let replica = Replica::new(engine.clone(), ReplicaConfig::with_memory(64 << 20));
    (engine, replica)
}

/// A mutation that adds to the counter of a row; without a row, to the static one.
fn update(k: i32, c: Option<i32>, delta: i64, timestamp: i64) -> Mutation {
    let schema = schema();
    let mut builder = MutationBuilder::new(schema.id, schema.version, &k.to_be_bytes());
    let mut row = RowBuilder::new(None, Tombstone::LIVE);
    row.push(&Cell::live(if c.is_some() { VALUE } else { STATIC }, timestamp, &counter::update(delta)));
    match c {
        Some(c) => builder.row(clustering(&[c]), row.finish()),
        None => builder.static_row(row.finish()),
    }
    builder.finish(&schema)
}

/// Applies an update and returns the new state.
async fn count_in(replica: &Replica, mutation: &Mutation) -> Result<Mutation, ReplicaError> {
    let request = ReplicaRequest::CounterUpdate((mutation.clone(), mutation.decorated_key()));
    match replica.perform(&request, &context()).await? {
        ReplicaResponse::CounterUpdated(state) => Ok(state),
        other => panic!("{other:?}"),
    }
}

async fn count(replica: &Replica, k: i32, c: Option<i32>, delta: i64, timestamp: i64) {
    count_in(replica, &update(k, c, delta, timestamp)).await.unwrap();
}

/// The counters of a partition, by row; the static one under none.
async fn counters(replica: &Replica, k: i32) -> BTreeMap<Option<i32>, i64> {
    let columns = vec![OutputColumn::Clustering(0), OutputColumn::Value(STATIC), OutputColumn::Value(VALUE)];
    let page = support::read(
        replica,
        &ReadCommand {
            table: schema().id,
            schema_version: schema().version,
            ranges: smallvec![PartitionRange::singular(&key(k))],
            slice: Rc::new(Slice { rows: vec![RowRange::FULL], static_row: true, reversed: false, resume: None }),
            output: Rc::new(Output::new(columns, true, false)),
            limits: limits(1000),
            now: 1,
            resumed_rows: 0,
            bypass_cache: false,
            query: None,
            first_page: true,
            ends_with_rows: false,
        },
        &context(),
    )
    .await
    .unwrap();
    let mut rest = &page.body[..];
    let mut next = || {
        let (len, tail) = rest.split_first_chunk::<4>().unwrap();
        let len = i32::from_be_bytes(*len);
        rest = tail;
        if len < 0 {
            return None;
        }
        let (value, tail) = rest.split_at(len as usize);
        rest = tail;
        Some(value.to_vec())
    };
    let number = |bytes: Vec<u8>| i64::from_be_bytes(bytes.try_into().expect("a counter shows eight bytes"));
    let mut out = BTreeMap::new();
    for _ in 0..page.rows {
        let c = next().map(|bytes| i32::from_be_bytes(bytes.try_into().unwrap()));
        if let Some(value) = next() {
            out.insert(None, number(value));
        }
        if let (Some(c), Some(value)) = (c, next()) {
            out.insert(Some(c), number(value));
        }
    }
    out
}

#[test]
fn updates_at_once_all_count() {
    rt::block_on(async {
        let scratch = Scratch::new("counters-at-once");
        let (engine, replica) = replica(&scratch).await;
        let updates: Vec<_> = (0..300i64)
            .map(|n| {
                let replica = replica.clone();
                rt::task::spawn(async move { count(&replica, (n % 3) as i32, Some(1), n - 100, n).await })
            })
            .collect();
        engine.flush(None).await.unwrap();
        for update in updates {
            update.await.expect("it was counted");
        }
        for k in 0..3 {
            let sum: i64 = (0..300).filter(|n| n % 3 == i64::from(k)).map(|n| n - 100).sum();
            assert_eq!(counters(&replica, k).await, BTreeMap::from([(Some(1), sum)]));
        }
    });
}

#[test]
fn logged_states_can_be_applied_again() {
    rt::block_on(async {
        let scratch = Scratch::new("counters-again");
        let (engine, replica) = replica(&scratch).await;
        count(&replica, 1, Some(1), 5, 1).await;
        count(&replica, 1, Some(1), 7, 2).await;
        // A replay applies earlier states again, as if the log's records were repeated.
        let state = counter::context(&[counter::Shard { id: replica.counter_id(), clock: 1, count: 5 }]);
        let schema = schema();
        let mut builder = MutationBuilder::new(schema.id, schema.version, &1i32.to_be_bytes());
        let mut row = RowBuilder::new(None, Tombstone::LIVE);
        row.push(&Cell::live(VALUE, 1, &state));
        builder.row(clustering(&[1]), row.finish());
        let old = builder.finish(&schema);
        engine.apply(&old, &key(1)).unwrap();
        engine.apply(&old, &key(1)).unwrap();
        assert_eq!(counters(&replica, 1).await, BTreeMap::from([(Some(1), 12)]));
        // Another node's count is added.
        let other = counter::context(&[counter::Shard { id: CounterId(Uuid::from_u128(2)), clock: 1, count: 30 }]);
        let mut builder = MutationBuilder::new(schema.id, schema.version, &1i32.to_be_bytes());
        let mut row = RowBuilder::new(None, Tombstone::LIVE);
        row.push(&Cell::live(VALUE, 1, &other));
        builder.row(clustering(&[1]), row.finish());
        engine.apply(&builder.finish(&schema), &key(1)).unwrap();
        assert_eq!(counters(&replica, 1).await, BTreeMap::from([(Some(1), 42)]));
        count(&replica, 1, Some(1), 1, 3).await;
        assert_eq!(counters(&replica, 1).await, BTreeMap::from([(Some(1), 43)]));
    });
}

#[test]
fn only_counters_are_counted() {
    rt::block_on(async {
        let scratch = Scratch::new("counters-only");
        let engine = support::engine(&scratch).await;
        let replica = Replica::new(engine, ReplicaConfig::with_memory(64 << 20));
        let schema = support::schema(1);
        let plain = MutationBuilder::new(schema.id, schema.version, &1i32.to_be_bytes()).finish(&schema);
        let refused = count_in(&replica, &plain).await;
        assert!(matches!(refused, Err(ReplicaError::Rejected(_))), "{refused:?}");
        let unknown = count_in(&replica, &update(1, None, 1, 1)).await;
        assert_eq!(unknown, Err(ReplicaError::NoSuchTable));
    });
}

#[derive(Clone, Debug)]
enum Step {
    Count { k: i32, c: Option<i32>, delta: i64 },
    DeleteRow { k: i32, c: i32 },
    DeletePartition { k: i32 },
    Flush,
    Compact,
}

fn step() -> impl Strategy<Value = Step> {
    let place = (0..2i32, proptest::option::of(0..2i32));
    prop_oneof![
        8 => (place, -5..6i64).prop_map(|((k, c), delta)| Step::Count { k, c, delta }),
        2 => (0..2i32, 0..2i32).prop_map(|(k, c)| Step::DeleteRow { k, c }),
        1 => (0..2i32).prop_map(|k| Step::DeletePartition { k }),
        2 => Just(Step::Flush),
        1 => Just(Step::Compact),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 16))]

    #[test]
    fn counters_are_what_was_counted(steps in proptest::collection::vec(step(), 1..30)) {
        rt::block_on(async move {
            let scratch = Scratch::new("counters-model");
            let (engine, replica) = replica(&scratch).await;
            let schema = schema();
            let mut model: BTreeMap<i32, BTreeMap<Option<i32>, i64>> = BTreeMap::new();
            for (n, step) in steps.into_iter().enumerate() {
                let timestamp = n as i64 + 1;
                let tombstone = Tombstone::new(timestamp, 1);
                match step {
                    Step::Count { k, c, delta } => {
                        count(&replica, k, c, delta, timestamp).await;
                        *model.entry(k).or_default().entry(c).or_default() += delta;
                    }
                    Step::DeleteRow { k, c } => {
                        let mut builder = MutationBuilder::new(schema.id, schema.version, &k.to_be_bytes());
                        let row: Clustering = clustering(&[c]);
                        builder.row(row, RowBuilder::new(None, tombstone).finish());
                        count_in(&replica, &builder.finish(&schema)).await.unwrap();
                        model.entry(k).or_default().remove(&Some(c));
                    }
                    Step::DeletePartition { k } => {
                        let mut builder = MutationBuilder::new(schema.id, schema.version, &k.to_be_bytes());
                        builder.delete_partition(tombstone);
                        count_in(&replica, &builder.finish(&schema)).await.unwrap();
                        model.remove(&k);
                    }
                    Step::Flush => engine.flush(None).await.unwrap(),
                    Step::Compact => engine.compact_major(schema.id).await.unwrap(),
                }
                for k in 0..2 {
                    let wanted = model.get(&k).cloned().unwrap_or_default();
                    assert_eq!(counters(&replica, k).await, wanted, "partition {k} after step {n}");
                }
            }
        });
    }
}
